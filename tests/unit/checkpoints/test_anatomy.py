"""The anatomy of a run: its steps, and what of the last one has changed, by tensor."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from imaging import CIPHERS
from msgspec.structs import replace

from gcr.checkpoints import anatomy
from gcr.checkpoints.anatomy import RunAnatomy, anatomy_of
from gcr.checkpoints.contents import MOST_NAME
from gcr.checkpoints.marks import Marks
from gcr.checkpoints.run import Run, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.cli import drawing, runpicture
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

CHUNK = 32 << 10
Shards = Mapping[str, Sequence[bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path / "store", "train")


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def recorded(tensors: Shards, objects: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a record in which the shard `n` of a tensor is the file `<number of the tensor>.<n>`."""
    body: dict[str, Any] = {"format": 1, "tensors": {}, "objects": {name: name for name in objects}, "paths": None}
    for number, (name, shards) in enumerate(tensors.items()):
        places = [{"offsets": [n], "sizes": [len(data)], "file": f"{number}.{n}"} for n, data in enumerate(shards)]
        body["tensors"][name] = {"dtype": "uint8", "size": [sum(map(len, shards))], "shards": places}
    return body


def save(run: Run, step: int, tensors: Shards, record: object = None, marks: Marks | None = None) -> None:
    saving = Saving(run, step, CHUNK, marks=marks)
    files = [(f"{n}.{m}", memoryview(data)) for n, each in enumerate(tensors.values()) for m, data in enumerate(each)]
    body = json.dumps(recorded(tensors) if record is None else record).encode()
    saving.commit([write_share(run, step, files, CHUNK)], body, 1, Framework("torch", {"torch": "2.13"}))


def looked(run: Run) -> RunAnatomy:
    found = anatomy_of(run.store(), run.name)
    assert found is not None
    return found


def contents(found: RunAnatomy) -> dict[str, tuple[int, int | None]]:
    return {each.name: (each.bytes, each.bytes_changed) for each in found.newest.contents if each.name != "record"}


def test_what_has_changed_is_said_by_tensor(run: Run) -> None:
    first, second, moved = bytes_of(1, 3 * CHUNK + 5), bytes_of(2, 2 * CHUNK), bytes_of(3, CHUNK)
    save(run, 1, {"a": [first, second], "zeros": [bytes(2 * CHUNK)], "gone": [b"x"], "cut": [moved]})
    changed = bytes(3 * CHUNK) + first[3 * CHUNK :]
    half = bytes(CHUNK) + second[CHUNK:]
    after = {"zeros": [bytes(2 * CHUNK)], "a": [changed, half], "cut": [moved[:CHUNK]], "new": [b"yy"], "none": [b""]}
    save(run, 2, after)
    found = looked(run)
    assert (found.newest.step, found.newest.before, found.newest.by_file) == (2, 1, None)
    assert contents(found) == {
        "a": (5 * CHUNK + 5, 4 * CHUNK),
        "zeros": (2 * CHUNK, 0),  # of other files than before
        "cut": (CHUNK, 0),
        "new": (2, 2),
        "none": (0, 0),
    }
    sizes = [each.bytes for each in found.newest.contents]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == found.steps[-1].bytes_total
    assert (found.count, found.first, found.last, found.packs) == (2, 1, 2, 4)
    assert found.bytes_on_disk == sum(path.stat().st_size for path in (run.folder / "packs").iterdir())


def test_a_shard_that_was_cut_in_another_way_has_changed_and_a_run_of_one_step_is_compared_with_nothing(
    run: Run,
) -> None:
    data = bytes_of(1, 2 * CHUNK)
    save(run, 1, {"a": [data]})
    assert contents(looked(run)) == {"a": (2 * CHUNK, None)}
    save(run, 2, {"a": [data[:CHUNK], data[CHUNK:]]})
    assert contents(looked(run)) == {"a": (2 * CHUNK, 2 * CHUNK)}


MISFITS = {
    "no JSON": "text",
    "another format": recorded({}) | {"format": 2},
    "a file that is not there": recorded({"a": [b"x"], "b": [b"x"], "c": [b"x"]}),
    "a file twice": recorded({"a": [b"x"]}, ["0.0"]),
    "no number": recorded({}) | {"tensors": {"a": {"dtype": "uint8", "size": ["1"], "shards": []}}},
    "less than nothing": recorded({}) | {"tensors": {"a": {"dtype": "uint8", "size": [-1], "shards": []}}},
    "deep": json.loads("[" * 400 + "]" * 400),
}


@pytest.mark.parametrize("record", MISFITS.values(), ids=MISFITS)
def test_where_a_record_makes_no_sense_files_stand_for_tensors(run: Run, record: object) -> None:
    for step, data in ((1, b"x"), (2, b"z")):
        save(run, step, {"a": [data, b"y"]}, record)
    found = looked(run)
    assert "makes no sense" in str(found.newest.by_file)
    assert (contents(found), found.damaged) == ({"0.0": (1, 1), "0.1": (1, 0)}, [])
    save(run, 3, {"a": [b"x", b"y"]})
    assert contents(looked(run)) == {"a": (2, None)}  # two ways of naming cannot be compared


def test_a_hostile_name_commands_no_terminal_and_is_not_endless(run: Run) -> None:
    save(run, 1, {"\x1b[2J\n\u202e": [b"x"], "a" * 10**6: [b"x"], "[red]": [b"y"]})
    assert [*contents(looked(run))] == ["?[2J??", "[red]", "a" * (MOST_NAME - 1) + "…"]
    drawn = drawing.on_terminal(runpicture.of_run(looked(run)))
    assert "[red]" in drawn and "\x1b" not in drawn and max(map(len, drawn.splitlines())) <= 80


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("suffix, compared", [(".json", 1), (".chunks", None)])
def test_a_damaged_step_is_said_and_hides_no_other(run: Run, suffix: str, compared: int | None) -> None:
    for step in (1, 2, 3):
        save(run, step, {"a": [bytes([step])]})
    flip(run.folder / f"images/train.{2:012}{suffix}")
    found = looked(run)
    assert [each.step for each in found.damaged] == [2]
    assert (found.newest.step, found.newest.before, found.count) == (3, compared, 3)
    assert "step 2:" in drawing.on_terminal(runpicture.of_run(found))


def test_the_last_step_may_be_damaged_in_any_file_and_all_may_be(run: Run) -> None:
    for step in (1, 2):
        save(run, step, {"a": [bytes([step])]})
    pack = run.manifest(2).packs[0]
    kept = (run.folder / f"packs/{pack.id}.pack").rename(run.folder / "away")
    found = looked(run)
    assert (found.newest.step, contents(found), [each.step for each in found.damaged]) == (2, {"0.0": (1, 1)}, [2])
    kept.rename(run.folder / f"packs/{pack.id}.pack")
    flip(run.folder / f"images/train.{2:012}.chunks")
    assert contents(looked(run)) == {"0.0": (1, None)}
    flip(run.folder / f"images/train.{2:012}.json")
    assert (looked(run).newest.step, looked(run).last) == (1, 2)
    flip(run.folder / f"images/train.{1:012}.json")
    with pytest.raises(Damaged, match="000000000002"):
        looked(run)
    assert anatomy_of(run.store(), "other") is None


def test_an_encrypted_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cipher = run_in(tmp_path / "store", "train"), CIPHERS["encrypted"]
    monkeypatch.setattr("gcr.checkpoints.run._cipher", lambda: cipher)
    for step in (1, 2):
        save(run, step, {"secret": [bytes_of(1, CHUNK), bytes([step])]})
    found = anatomy_of(Store(run.folder, cipher), "train")
    assert found is not None and contents(found) == {"secret": (CHUNK + 1, 1)}
    assert not any(b"secret" in path.read_bytes() for path in run.folder.rglob("*") if path.is_file())


def test_a_long_run_is_read_for_a_bounded_time_and_drawn_in_a_bounded_number_of_rows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runpicture, "MOST_ROWS", 2)
    for step in (1, 2, 3, 4):
        marks = Marks()
        marks.mark("returned")
        save(run, step, {f"t{n}": [bytes(n)] for n in range(4)}, marks=marks)
    saves, stalls, tensors = runpicture.of_run(looked(run)).sections
    assert [row.name.split("  ")[0] for row in saves.rows] == ["2 earlier steps", "3", "4"]
    assert [row.name for row in stalls.rows] == ["mean of 2 earlier steps", "3", "4"]
    assert [row.name for row in tensors.rows] == ["record", "t3", "3 others"]
    assert sum(row.amount.value for row in tensors.rows) == tensors.total.value
    short = anatomy_of(run.store(), "train", read_s=0)
    assert short is not None and [each.step for each in short.steps] == [4]
    assert ("left out", "3 earlier steps, to take no longer") in runpicture.of_run(short).facts
    monkeypatch.setattr(anatomy, "MOST_RECORD", 10)
    assert "bytes" in str(looked(run).newest.by_file)


def test_a_save_keeps_the_instants_of_its_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 102.5, 104.0, 109.0])
    monkeypatch.setattr("gcr.checkpoints.marks.time.monotonic", lambda: next(clock))
    marks = Marks()
    for name in ("returned", "drained", "drained"):
        marks.mark(name)
    marks.created = 7.5
    held = [0.0]
    marks.measure("held", lambda: held[0])
    held[0] = 0.5
    monkeypatch.setattr("gcr.checkpoints.marks.time.monotonic", lambda: 110.0)
    save(run, 1, {"a": [b"x"]}, marks=marks)
    (step,) = looked(run).steps
    assert (step.created, step.timings) == (7.5, {"returned": 1.0, "drained": 2.5, "written": 10.0, "held": 0.5})
    monkeypatch.undo()
    save(run, 2, {"a": [b"x"]})  # as DCP's writer alone does
    assert [*looked(run).steps[1].timings] == ["written"]
    (stalls,) = [each for each in runpicture.of_run(looked(run)).sections if each.name == "Stalls"]
    assert [(row.name, row.amount.value) for row in stalls.rows] == [("1", 1.5)]
    only_two = replace(looked(run), steps=looked(run).steps[1:])
    assert [each.name for each in runpicture.of_run(only_two).sections] == ["Saves", "Tensors"]
