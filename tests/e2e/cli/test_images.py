"""`gcr images`, `inspect`, `verify`: on stores that were written without a device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.image.store.store import Store

from .conftest import DEADLINE, MIB, Gcr, gcr_command


def test_without_a_store_there_are_no_images_and_none_is_made(gcr: Gcr, home: Path) -> None:
    where = {"GCR_STORE": str(home / "nowhere")}
    assert gcr("images", **where).out == "no images\n"
    assert gcr("verify").out == "no images\n"
    assert gcr("images", "--json", **where).json["images"] == []
    assert gcr("prune", "--keep-last", "1", **where).out == "nothing to remove\n"
    for command in ("rm", "verify"):
        ran = gcr(command, "warm", "--json", **where)
        assert (ran.code, ran.json["error"]["code"]) == (3, "no_such_image")
        assert f"there is no store in {home / 'nowhere'}" in ran.json["error"]["message"]
    assert not (home / "nowhere").exists()


@pytest.mark.parametrize("there", [False, True])
def test_where_a_disk_is_missing_nothing_is_said_to_be_good_and_nothing_made(gcr: Gcr, home: Path, there: bool) -> None:
    """A later mount must not find another store in its place."""
    disk = home / "disk"
    if there:
        disk.mkdir(mode=0o700)
    ran = gcr("verify", "--deep", "--store", str(disk), "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "store_unusable")
    assert ran.json["error"]["message"] == f"there is no store in {disk}"
    for words in (("images",), ("inspect", "warm"), ("rm", "warm"), ("prune", "--keep-last", "0")):
        gcr(*words, "--store", str(disk))
    assert not disk.exists() or not [*disk.iterdir()]


def test_images_are_listed_with_what_they_cost(gcr: Gcr, store: Store) -> None:
    write(store, "warm", [bytes_of(1, MIB), bytes(MIB)])
    write(store, "warm2", [bytes_of(1, MIB), bytes_of(2, MIB)])
    first, second = gcr("images", "--json").json["images"]
    assert (first["bytes_total"], first["bytes_zero"], first["bytes_written"]) == (2 * MIB, MIB, MIB)
    assert (second["bytes_total"], second["bytes_zero"], second["bytes_written"]) == (2 * MIB, 0, MIB)
    head, *rows = gcr("images").out.splitlines()
    assert head.split() == ["IMAGE", "JOB", "CUT", "MADE", "SIZE", "ZERO", "WRITTEN", "NOTES"]
    assert [row.split()[0] for row in rows] == ["warm", "warm2"]
    assert all(row.endswith("SIMULATED") for row in rows)


def test_an_image_is_drawn_and_every_byte_of_it_accounted_for(gcr: Gcr, store: Store, tmp_path: Path) -> None:
    write(store, "one", [bytes_of(1, MIB)])
    write(store, "warm", [bytes_of(1, MIB), bytes(MIB), bytes_of(2, 3 * MIB), bytes_of(3, 100_000)])
    found = gcr("inspect", "warm", "--json").json
    assert sum(found["origins"].values()) == found["bytes_total"] == 5 * MIB + 100_000
    assert found["origins"] == {"zero": MIB, "repeated": 0, "shared": MIB, "written": found["bytes_written"]}
    assert found["bytes_by_device"] == {"GPU-1": found["bytes_total"]}
    classes = {each["limit"]: (each["count"], each["bytes"]) for each in found["allocations"]}
    assert classes == {
        128 << 10: (1, 100_000),
        256 << 10: (0, 0),
        512 << 10: (0, 0),
        MIB: (2, 2 * MIB),
        2 * MIB: (0, 0),
        4 * MIB: (1, 3 * MIB),
    }
    drawn = gcr("inspect", "warm").out
    assert "SIMULATED" in drawn and "Allocations: 4" in drawn and "\x1b" not in drawn
    assert max(map(len, drawn.splitlines())) <= 80
    page = tmp_path / "warm.html"
    assert gcr("inspect", "warm", "--html", str(page)).code == 0
    assert gcr("inspect", "warm", "--html", "-").out == page.read_text()
    assert gcr("inspect", "warm", "--html", "-", "--json").code == 2
    assert "up to 4.0 MiB" in page.read_text() and "://" not in page.read_text()  # it needs no other file
    ran = gcr("inspect", "warm", "--html", str(page), "--json")
    assert (ran.code, ran.json["error"]["exit"]) == (3, 3)  # what is there is not written over
    assert gcr("inspect", "cold", "--json").json["error"]["code"] == "no_such_image"


def test_an_image_of_nothing_is_drawn(gcr: Gcr, store: Store) -> None:
    write(store, "none", [])
    assert gcr("inspect", "none", "--json").json["allocations"] == []
    assert "Allocations: 0" in gcr("inspect", "none").out


def test_an_error_of_ours_in_the_child_is_a_bug_with_a_traceback(gcr: Gcr, home: Path) -> None:
    Store(home / "store")
    (home / "faults").write_text("store.read no such fault\n")
    ran = gcr("images", "--json", GCR_STORE=str(home / "store"), GCR_FAULTS=str(home / "faults"))
    assert (ran.code, ran.json["error"]["code"]) == (1, "internal")
    assert "Traceback" not in ran.json["error"]["message"]
    log = (home / "xdg_state_home/gcr/log/cli.log").read_text()
    assert "in read_file" in log and "no such fault" in log


def test_a_pack_of_many_images_is_read_once(gcr: Gcr, store: Store) -> None:
    for name in ("one", "two", "three"):
        write(store, name, [bytes_of(1, MIB)])
    assert sum(each["bytes"] for each in gcr("verify", "--deep", "--json").json["images"]) == MIB


def test_a_page_that_cannot_be_written_leaves_nothing(gcr: Gcr, store: Store, home: Path) -> None:
    """Or the next try would be refused: there is a file."""
    write(store, "warm", [bytes_of(1, 4096)])
    page = home / "warm.html"
    command = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *gcr_command(["inspect", "warm", "--html", str(page)])]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python 3.11 takes a part of a module's code for all of it
    assert subprocess.run(command, env=env, capture_output=True, timeout=DEADLINE).returncode == 3
    assert not page.exists()
    assert gcr("inspect", "warm", "--html", "").code == 3


def test_a_store_that_is_no_folder_is_refused(gcr: Gcr, home: Path) -> None:
    (home / "file").touch()
    for place in (home / "file", home / "file/below"):
        ran = gcr("images", "--json", "--store", str(place))
        assert (ran.code, ran.json["error"]["code"] in ("unsafe_runtime", "store_unusable")) == (3, True)


def test_a_time_is_a_number(gcr: Gcr) -> None:
    assert gcr("images", "--timeout", "nan", "--json").json["error"]["code"] == "usage"
