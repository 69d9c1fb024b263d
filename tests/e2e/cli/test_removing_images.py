"""`gcr rm` and `prune`: on stores that were written without a device."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.cli.commands.prune import _pruned
from gcr.image.files.manifest import Manifest
from gcr.image.store.retention import doomed
from gcr.image.store.store import Store

from .conftest import MIB, Gcr


def at(day: int, hour: int) -> float:
    return datetime(2026, 11, day, hour).timestamp()


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


def test_what_cannot_be_read_is_found_out_before_anything_is_removed(
    gcr: Gcr, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal says that nothing was touched."""
    for name in ("gone", "other"):
        write(store, name, [bytes_of(1, 4096)])
    (home / "faults").write_text("store.read.json fail\n")
    ran = gcr("rm", "gone", "--json", GCR_FAULTS=str(home / "faults"))
    assert (ran.code, store.images.names()) == (4, ["gone", "other"])


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
