"""`gcr images`, `verify`, `rm`, `prune`: on stores that were written without a device."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.cli.commands.prune import _pruned
from gcr.image.files.manifest import Manifest, _digest
from gcr.image.files.smallfiles import MOST_MANIFEST
from gcr.image.store.retention import doomed
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged
from gcr.testing.machine import alive, until

from .conftest import DEADLINE, Gcr, gcr_command

MIB = 1 << 20


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GCR_STORE", str(home / "store"))
    return Store(home / "store")


def at(day: int, hour: int) -> float:
    return datetime(2026, 11, day, hour).timestamp()


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


def test_a_damaged_image_hides_no_other(gcr: Gcr, store: Store) -> None:
    for name in ("bad", "good"):
        write(store, name, [bytes_of(1, 4096)])
    path = store.images.folder / "bad.json"
    path.write_text(path.read_text().replace('"job": "llm"', '"job": "lln"'))
    bad, good = gcr("images", "--json").json["images"]
    assert bad["damaged"] and good["damaged"] is None
    assert "DAMAGED" in gcr("images").out
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")
    assert gcr("verify", "good", "--deep").out == "good: good\n"
    assert gcr("prune", "--keep-last", "0").code == 0
    assert store.images.names() == ["bad"]  # what cannot be read is kept


def test_only_a_deep_look_finds_a_flipped_bit_of_a_chunk(gcr: Gcr, store: Store) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    (pack,) = store.packs.folder.iterdir()
    data = bytearray(pack.read_bytes())
    data[8192] ^= 1
    pack.write_bytes(data)
    assert gcr("verify", "warm").code == 0
    ran = gcr("verify", "warm", "--deep", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")


def test_all_of_the_named_go_or_none(gcr: Gcr, store: Store) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    write(store, "warm2", [bytes_of(1, MIB), bytes_of(2, MIB)])
    ran = gcr("rm", "warm", "cold", "--json")
    assert (ran.code, ran.json["error"]["code"], store.images.names()) == (3, "no_such_image", ["warm", "warm2"])
    shared = gcr("rm", "warm", "--json").json["bytes_freed"]
    assert shared < MIB  # the other one needs its chunks
    assert gcr("rm", "warm2", "--json").json["bytes_freed"] >= 2 * MIB
    assert not list(store.packs.folder.iterdir())


def test_what_no_rule_keeps_goes(gcr: Gcr, store: Store) -> None:
    made = {"a1": at(1, 8), "a2": at(1, 20), "b": at(2, 9), "c": at(4, 9), "d": at(4, 10)}
    for number, (name, created) in enumerate(made.items()):
        write(store, name, [bytes_of(number, 4096)], created=created)
    write(store, "other", [bytes_of(9, 4096)], job="trainer", created=at(1, 1))
    assert gcr("prune", "--json").json["error"]["code"] == "usage"
    dry = gcr("prune", "--keep-last", "1", "--keep-daily", "3", "--dry-run", "--json").json
    assert (dry["images"], len(store.images.names())) == (["a1", "c"], 6)
    assert gcr("prune", "--keep-last", "1", "--keep-daily", "3", "--json").json["images"] == ["a1", "c"]
    assert store.images.names() == ["a2", "b", "d", "other"]
    assert gcr("prune", "--keep-last", "2").out.endswith("removed a2\n")
    assert store.images.names() == ["b", "d", "other"]


def test_a_dry_run_tells_the_bytes_that_the_same_prune_frees(gcr: Gcr, store: Store) -> None:
    write(store, "first", [bytes_of(1, MIB)], created=1.0)
    write(store, "second", [bytes_of(1, MIB), bytes_of(2, 3 * MIB)], created=2.0)
    write(store, "last", [bytes_of(1, MIB)], created=3.0)  # needs a pack of the first
    (store.packs.folder / f"{0:032x}.pack.new").write_bytes(bytes(MIB))  # a writer that died
    dry = gcr("prune", "--keep-last", "1", "--dry-run", "--json").json
    assert "would remove first, second: 4.0 MiB" in gcr("prune", "--keep-last", "1", "--dry-run").out
    assert store.images.names() == ["first", "last", "second"]
    done = gcr("prune", "--keep-last", "1", "--json").json
    assert dry["bytes_freed"] == done["bytes_freed"] >= 4 * MIB


def test_a_dry_run_beside_an_image_that_cannot_be_read_promises_no_bytes(gcr: Gcr, store: Store) -> None:
    for number, name in enumerate(("first", "broken", "last")):
        write(store, name, [bytes_of(number, MIB)], created=float(number))
    (store.images.folder / "broken.json").write_bytes(b"{}")
    dry, done = (gcr("prune", "--keep-last", "1", *more, "--json").json for more in (("--dry-run",), ()))
    assert (dry["images"], dry["bytes_freed"], done["bytes_freed"]) == (["first"], 0, 0)


def test_an_image_that_takes_a_doomed_name_meanwhile_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new image comes between the decision and the lock."""
    for number, name in enumerate(("other", "warm", "last"), 1):
        write(store, name, [bytes_of(number, 4096)], created=float(number))
    real = Store.remove

    def remove(self: Store, *arguments: Any) -> int:
        monkeypatch.undo()
        self.remove(["warm"])
        write(self, "warm", [bytes_of(4, 4096)], created=4.0)
        return real(self, *arguments)

    monkeypatch.setattr(Store, "remove", remove)
    names, _freed = _pruned(store, 1, 0, dry_run=False)
    assert (names, store.images.names()) == (["other"], ["last", "warm"])


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
        until(lambda: not alive(child), 5, "what looked is gone")
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
        until(lambda: not alive(child), 5, "it is gone")


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


def test_an_error_of_ours_in_the_child_is_a_bug_with_a_traceback(gcr: Gcr, home: Path) -> None:
    Store(home / "store")
    (home / "faults").write_text("store.read no such fault\n")
    ran = gcr("images", "--json", GCR_STORE=str(home / "store"), GCR_FAULTS=str(home / "faults"))
    assert (ran.code, ran.json["error"]["code"]) == (1, "internal")
    assert "Traceback" not in ran.json["error"]["message"]
    log = (home / "xdg_state_home/gcr/log/cli.log").read_text()
    assert "in read_file" in log and "no such fault" in log


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def a_link(path: Path) -> None:
    path.symlink_to(path.with_suffix(".aside"))


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * MOST_MANIFEST)


FOREIGN = [os.mkfifo, a_folder, a_socket, a_link, too_large]


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_what_is_no_file_of_ours_is_damage_and_hides_no_other_image(
    gcr: Gcr, store: Store, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["chunks", "hashes", "json", "pack"]
    for number, name in enumerate(["good", *names]):
        write(store, name, [bytes_of(number, 4096)])
    (pack,) = store.images.manifest("pack").packs
    for path in (
        store.packs.folder / f"{pack.id}.pack",
        *(store.images.folder / f"{name}.{name}" for name in names[:3]),
    ):
        path.rename(path.with_suffix(".aside"))
        monkeypatch.chdir(path.parent)
        make(path)
    began = time.monotonic()
    assert [each["image"] for each in gcr("images", "--json").json["images"] if each["damaged"]] == ["json"]
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["message"].rpartition(": ")[2]) == (6, ", ".join(names))
    write(store, "new", [bytes_of(4, 4096)])  # it is built upon nothing of that
    assert gcr("verify", "good", "new", "--deep").code == 0
    assert time.monotonic() - began < DEADLINE / 2


NONSENSE = {
    "created": [1e300, -1.0, float("nan"), float("inf"), "now", None, True],
    "bytes_total": [-1, 1.5, 10**30, "1", None],
    "simulated": ["yes", 1],
    "job": [None, 7, ["llm"], "l\x1b[2Jm", "l\nm"],
    "models": [{"GPU-1": 3}, {"GPU-1": "\x1b]0;x\x07"}, []],
    "timings": [{"stop": float("nan")}, {"stop": "soon"}],
    "chunk_bytes": [0, -1, 1e9],
    "parent": [3],
    "processes": [[3], None],
}


def test_nonsense_with_a_right_digest_is_damage(store: Store) -> None:
    good = write(store, "warm", [bytes_of(1, 4096)]).to_bytes()
    for name, value in [(name, value) for name, values in NONSENSE.items() for value in values]:
        document = json.loads(good)
        document["image"][name] = value
        document["digest"] = _digest(document["image"])
        with pytest.raises(Damaged):
            raise AssertionError(f"{name} {value} {Manifest.from_bytes(json.dumps(document).encode(), 'warm')}")


def test_an_image_that_claims_to_be_huge_is_refused_at_once(gcr: Gcr, store: Store) -> None:
    manifest = write(store, "warm", [bytes_of(1, 4096)])
    document = json.loads(manifest.to_bytes())
    document["image"]["processes"][0]["table"]["handles"][0]["spec"]["size"] = 1 << 60
    document["digest"] = _digest(document["image"])
    (store.images.folder / "warm.json").write_text(json.dumps(document))
    assert gcr("images").code == gcr("inspect", "warm").code == 0
    assert gcr("verify", "--json").json["error"]["code"] == "damaged"


def test_what_cannot_be_read_is_found_out_before_anything_is_removed(
    gcr: Gcr, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal says that nothing was touched."""
    for name in ("gone", "other"):
        write(store, name, [bytes_of(1, 4096)])
    (home / "faults").write_text("store.read.json fail\n")
    ran = gcr("rm", "gone", "--json", GCR_FAULTS=str(home / "faults"))
    assert (ran.code, store.images.names()) == (4, ["gone", "other"])


def test_all_that_is_damaged_is_named(gcr: Gcr, store: Store) -> None:
    for number, name in enumerate(("bad", "good", "newer", "worse")):
        write(store, name, [bytes_of(number, 4096)])
    for name in ("bad", "worse"):
        (store.images.folder / f"{name}.chunks").write_bytes(b"")
    newer = store.images.folder / "newer.json"
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 2'))
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["message"].endswith("2 of 3 are damaged: bad, worse")) == (6, True)
    assert gcr("rm", "bad", "worse").code == 0
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "wrong_image")


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


def test_the_newest_is_kept_although_the_clock_was_set_back(store: Store) -> None:
    """Parents decide; names that were taken again, in a circle or not, change nothing."""
    made = write(store, "first", [bytes_of(1, 4096)], created=at(4, 9))

    def child(name: str, parent: str, created: float) -> Manifest:
        return replace(made, name=name, created=created, costs=replace(made.costs, parent=parent))

    line = [child(f"i{n}", f"i{n - 1}" if n else "first", at(1, n + 1)) for n in range(4)]
    assert [each.name for each in doomed([made, *line], 2, 0)] == ["first", "i0", "i1"]
    assert [each.name for each in doomed(reversed([made, *line]), 2, 0)] == ["first", "i0", "i1"]
    circle = [child("a", "b", 2.0), child("b", "a", 1.0)]
    assert len(doomed(circle, 1, 0)) == 1
    (process,) = made.processes
    stranger = replace(process, table=replace(process.table, pid=4711))
    taken = replace(made, name="i0", processes=(stranger,), created=at(3, 1))
    assert [each.name for each in doomed([taken, line[1]], 1, 0)] == ["i1"]
