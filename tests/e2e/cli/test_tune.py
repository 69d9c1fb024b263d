"""`gcr tune` on the disk of the tests: its answer, what it refuses, and that it leaves nothing, however it ends."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gcr.checkpoints.measuring import FOLDER
from gcr.image.store.store import Store

from .conftest import Gcr, gcr_command


def left(folder: Path) -> list[Path]:
    return [*folder.glob(f"**/{FOLDER}*")]


def test_it_measures_chooses_and_leaves_nothing(gcr: Gcr, home: Path) -> None:
    run = home / "disk" / "run"
    line = ("tune", str(run), "--bytes", "4MiB", "--step", "0.05", "--blocked", "0.01", "--slowdown", "2%")
    found = gcr(*line, "--json").json
    assert (found["bytes"], found["slowdown"], len(found["measured"])) == (4 << 20, 0.02, 12)
    assert found["every"] >= 10
    assert found["lost"] <= 0.02
    assert found["bound"] in ("blocked", "disk")
    assert all(rate > 0 for way in found["measured"] for rate in way["bytes_per_s"])
    assert found["compression"]["bytes_per_s"] > 0
    assert 0.8 < found["compression"]["ratio"] < 0.87
    said = gcr(*line).out
    assert "Compression would make" in said
    assert said.startswith(f"Checkpointer('{run}', threads=")
    assert "2 % is allowed" in said
    assert not run.parent.exists()
    assert left(home) == []


def test_a_store_stays_as_it_is(gcr: Gcr, store: Store) -> None:
    before = sorted(store.path.iterdir())
    assert gcr("tune", str(store.path), "--bytes", "1M", "--step", "1").code == 0
    assert sorted(store.path.iterdir()) == before


@pytest.mark.parametrize(
    "options, code",
    [
        (("--bytes", "900T", "--step", "1"), "no_room"),
        (("--bytes", "0", "--step", "1"), "usage"),
        (("--bytes", "16 apples", "--step", "1"), "usage"),
        (("--bytes", "1G", "--step", "0"), "usage"),
        (("--bytes", "1G", "--step", "1", "--slowdown", "3"), "usage"),
        (("--bytes", "1G", "--step", "1", "--slowdown", "100%"), "usage"),
        (("--bytes", "1G"), "usage"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    gcr: Gcr, home: Path, options: tuple[str, ...], code: str
) -> None:
    began = time.monotonic()
    assert gcr("tune", str(home / "run"), *options, "--json").json["error"]["code"] == code
    assert time.monotonic() - began < 10
    assert left(home) == []


def test_a_bucket_is_refused(gcr: Gcr) -> None:
    assert gcr("tune", "s3://bucket/run", "--bytes", "1G", "--step", "1", "--json").json["error"]["code"] == "usage"


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_leaves_nothing_when_it_is_ended(home: Path, ends: signal.Signals) -> None:
    line = gcr_command(["tune", str(home / "run"), "--bytes", "64MiB", "--step", "1"])
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        until(lambda: any(path.stat().st_size for path in home.glob(f"{FOLDER}*/store/packs/*")))
        running.send_signal(ends)
        assert running.wait(30) in (130, -ends)
    until(lambda: not left(home))


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)
