"""Commands about images on a store that hangs, or is slow."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.image.store.store import Store
from gcr.testing.machine import alive, until

from .conftest import DEADLINE, Gcr, gcr_command

EVERY: dict[str, tuple[str, ...]] = {
    "images": (),
    "inspect": ("warm",),
    "verify": (),
    "rm": ("other",),
    "prune": ("--keep-last", "1"),
    "push": ("warm", "{url}"),
    "pull": ("warm", "{url}"),
    "restore": ("--image", "warm"),
}


@contextmanager
def silent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Has the disk not answer at the next read of a manifest, until the block ends."""
    held = home / "held"
    (home / "faults").write_text(f"store.read.json hold {held}\n")
    monkeypatch.setenv("GCR_FAULTS", str(home / "faults"))
    yield held
    held.unlink(missing_ok=True)


def words_of(command: str, home: Path, store: Store) -> list[str]:
    if command == "pull":  # from a store that answers, into one that has an image of the name
        (home / "away").mkdir(mode=0o700, exist_ok=True)
        Store(home / "away")
    url = (home / "away" if command == "push" else store.path).as_uri()
    return [command, *(word.format(url=url) for word in EVERY[command]), "--json"]


@pytest.mark.parametrize("command", EVERY)
def test_a_store_that_hangs_is_refused(
    gcr: Gcr, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("other", "warm"):
        write(store, name, [bytes_of(1, 4096)])
    with silent(home, monkeypatch):
        began = time.monotonic()
        ran = gcr(*words_of(command, home, store), GCR_STORE_S="1")
        error = ran.json["error"]
        assert (ran.code, error["code"]) == (3, "store_unusable")
        assert "has not answered for 1 s" in error["message"]
        assert time.monotonic() - began < DEADLINE / 2
    assert store.images.names() == ["other", "warm"]


@pytest.mark.parametrize("command", EVERY)
def test_a_caller_that_waits_for_a_store_that_hangs_may_leave(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("other", "warm"):
        write(store, name, [bytes_of(1, 4096)])
    with silent(home, monkeypatch) as held:
        ran = subprocess.Popen(gcr_command(words_of(command, home, store)), stdout=subprocess.PIPE, text=True)
        until(held.exists, DEADLINE, "it asks the store")
        (child,) = children(ran.pid)
        began = time.monotonic()
        ran.send_signal(signal.SIGINT)
        out, _ = ran.communicate(timeout=DEADLINE)
        assert (ran.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
        assert time.monotonic() - began < 10
        until(lambda: not alive(child), 20, "what looked is gone")
    assert store.images.names() == ["other", "warm"]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_helper_that_looks_at_a_store_holds_none_of_our_pipes_and_dies_with_us(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be left behind for ever: then `gcr images | cat` ends all the same."""
    write(store, "warm", [bytes_of(1, 4096)])
    with silent(home, monkeypatch) as held:
        ran = subprocess.Popen(gcr_command(["images"]), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until(held.exists, DEADLINE, "it asks the store")
        (child,) = children(ran.pid)
        assert {str(Path(f"/proc/{child}/fd/{fd}").readlink()) for fd in (0, 1, 2)} == {os.devnull}
        ran.kill()
        ran.communicate(timeout=DEADLINE)
        until(lambda: not alive(child), 20, "it is gone")


def test_no_time_is_longer_than_asked_for(gcr: Gcr, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "warm", [bytes_of(1, 4096)])
    with silent(home, monkeypatch):
        ran = gcr("verify", "--timeout", "0.5", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (4, "deadline_passed")


def test_a_store_that_gets_on_slowly_is_waited_for(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence counts, not time: each of its manifests takes a part of what the store may be silent for."""
    names = [f"i{number}" for number in range(5)]
    for name in names:
        write(store, name, [bytes_of(1, 4096)])
    monkeypatch.setenv("GCR_FAULTS", str(home / "faults"))
    (home / "faults").write_text(f"store.read.json hold {home / names[0]}\n")
    ran = subprocess.Popen(gcr_command(["images"]), env=os.environ | {"GCR_STORE_S": "6"}, stdout=subprocess.DEVNULL)
    for name, following in zip(names, [*names[1:], "none"], strict=True):
        until((home / name).exists, DEADLINE, "it reads the next")
        time.sleep(1.6)
        (home / "faults").write_text(f"store.read.json hold {home / following}\n")
        (home / name).unlink()
    assert ran.wait(DEADLINE) == 0
