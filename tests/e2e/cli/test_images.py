"""`gcr images`, `verify`, `rm`, `prune`: on stores that were written without a device."""

import sys
from datetime import datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.image.store import Store

from .conftest import Gcr

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
    assert gcr("verify", **where).out == "no images\n"
    assert gcr("images", "--json", **where).json["images"] == []
    assert gcr("prune", "--keep-last", "1", **where).out == "nothing to remove\n"
    for command in ("rm", "verify"):
        ran = gcr(command, "warm", "--json", **where)
        assert (ran.code, ran.json["error"]["code"]) == (3, "no_such_image")
    assert not (home / "nowhere").exists()


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
    path = store.images / "bad.json"
    path.write_text(path.read_text().replace('"job": "llm"', '"job": "lln"'))
    bad, good = gcr("images", "--json").json["images"]
    assert bad["damaged"] and good["damaged"] is None
    assert "DAMAGED" in gcr("images").out
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")
    assert gcr("verify", "good", "--deep").out == "good: good\n"
    assert gcr("prune", "--keep-last", "0").code == 0
    assert store.names() == ["bad"]  # what cannot be read is kept


def test_only_a_deep_look_finds_a_flipped_bit_of_a_chunk(gcr: Gcr, store: Store) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    (pack,) = store.packs.iterdir()
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
    assert (ran.code, ran.json["error"]["code"], store.names()) == (3, "no_such_image", ["warm", "warm2"])
    shared = gcr("rm", "warm", "--json").json["bytes_freed"]
    assert shared < MIB  # the other one needs its chunks
    assert gcr("rm", "warm2", "--json").json["bytes_freed"] >= 2 * MIB
    assert not list(store.packs.iterdir())


def test_what_no_rule_keeps_goes(gcr: Gcr, store: Store) -> None:
    made = {"a1": at(1, 8), "a2": at(1, 20), "b": at(2, 9), "c": at(4, 9), "d": at(4, 10)}
    for number, (name, created) in enumerate(made.items()):
        write(store, name, [bytes_of(number, 4096)], created=created)
    write(store, "other", [bytes_of(9, 4096)], job="trainer", created=at(1, 1))
    assert gcr("prune", "--json").json["error"]["code"] == "usage"
    dry = gcr("prune", "--keep-last", "1", "--keep-daily", "3", "--dry-run", "--json").json
    assert (dry["images"], dry["bytes_freed"], len(store.names())) == (["a1", "c"], 0, 6)
    assert gcr("prune", "--keep-last", "1", "--keep-daily", "3", "--json").json["images"] == ["a1", "c"]
    assert store.names() == ["a2", "b", "d", "other"]
    assert gcr("prune", "--keep-last", "2").out.endswith("removed a2\n")
    assert store.names() == ["b", "d", "other"]


def test_an_image_is_drawn_and_every_byte_of_it_accounted_for(gcr: Gcr, store: Store, tmp_path: Path) -> None:
    write(store, "one", [bytes_of(1, MIB)])
    write(store, "warm", [bytes_of(1, MIB), bytes(MIB), bytes_of(2, 3 * MIB), bytes_of(3, 100_000)])
    found = gcr("inspect", "warm", "--json").json
    assert sum(found["origins"].values()) == found["bytes_total"] == 5 * MIB + 100_000
    assert found["origins"] == {"zero": MIB, "shared": MIB, "written": found["bytes_written"]}
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
    assert "up to 4.0 MiB" in page.read_text() and "://" not in page.read_text()  # it needs no other file
    ran = gcr("inspect", "warm", "--html", str(page), "--json")
    assert (ran.code, ran.json["error"]["exit"]) == (3, 3)  # what is there is not written over
    assert gcr("inspect", "cold", "--json").json["error"]["code"] == "no_such_image"


def test_an_image_of_nothing_is_drawn(gcr: Gcr, store: Store) -> None:
    write(store, "none", [])
    assert gcr("inspect", "none", "--json").json["allocations"] == []
    assert "Allocations: 0" in gcr("inspect", "none").out
