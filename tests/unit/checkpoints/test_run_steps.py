"""Steps of a run: several writers, one manifest last, and nothing of a save that did not come to its end."""

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gcr.checkpoints.loading import Step, memory_for
from gcr.checkpoints.run import Run, doomed, run_in
from gcr.checkpoints.saving import Framework, Saving, Share, locked, write_share
from gcr.cli.revivable import revivable
from gcr.errors import UsageError
from gcr.faults import InjectedFault
from gcr.image.files.manifest import Cut, Manifest
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, RunBusy, StepExists, StoreUnusable, WrongImage

FRAMEWORK = Framework("torch", {"torch": "2.13"})
SMALL = 32 << 10


def bytes_of(seed: int, size: int) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path / "store", "train")


def shares(run: Run, step: int, ranks: Sequence[Sequence[bytearray]]) -> list[Share]:
    return [
        write_share(run, step, [(f"{rank}.{n}", memoryview(data)) for n, data in enumerate(files)], SMALL)
        for rank, files in enumerate(ranks)
    ]


def save(run: Run, step: int, ranks: Sequence[Sequence[bytearray]]) -> Manifest:
    saving = Saving(run, step, SMALL)
    return saving.commit(shares(run, step, ranks), b"what it is", len(ranks), FRAMEWORK)


def read(run: Run, step: int, file: str) -> bytes:
    with Step(run, step) as found:
        return bytes(found.read(file, 0, found.size(file)))


def test_a_step_has_the_bytes_of_every_rank(run: Run) -> None:
    ranks = [[bytes_of(1, 100_000), bytes_of(2, 5), bytearray()], [], [bytearray(200_000), bytes_of(3, SMALL)]]
    manifest = save(run, 7, ranks)
    for rank, files in enumerate(ranks):
        assert [read(run, 7, f"{rank}.{number}") for number in range(len(files))] == files
    with Step(run, 7) as step:
        assert (step.record, step.progress) == (b"what it is", {"step": 7, "world": 3})
    assert (manifest.name, manifest.cut, manifest.source.job) == ("train.000000000007", Cut.APP, "train")
    assert manifest.costs.bytes_zero == 200_000
    with pytest.raises(WrongImage, match="no process in it"), revivable(manifest.name, run.store()):
        pytest.fail("gcr restore takes it for an image of processes")
    assert (run.steps(), run.latest(), run.verify(7) > 0) == ([7], 7, True)


@pytest.mark.parametrize("begin, end", [(0, 0), (0, 1), (SMALL - 1, SMALL + 1), (SMALL, 2 * SMALL), (99_999, 100_000)])
def test_any_range_of_a_file_can_be_read(run: Run, begin: int, end: int) -> None:
    data = bytes_of(1, 100_000)
    save(run, 1, [[bytes_of(2, 70_000)], [data]])
    with Step(run, 1) as step:
        assert bytes(step.read("1.0", begin, end)) == data[begin:end]
        for room in (memory_for(3 * step.chunk_bytes), memoryview(bytearray(3 * step.chunk_bytes))):
            found = step.begin("1.0", begin, end, room[: step.room("1.0", begin, end)]).result()
            assert bytes(found) == data[begin:end]
            assert found.obj is room.obj
        with pytest.raises(UsageError):
            step.read("1.0", begin, 100_001)


def test_what_has_not_changed_is_not_written_again(run: Run) -> None:
    before = [[bytes_of(1, 300_000)], [bytes_of(2, 300_000)]]
    save(run, 1, before)
    assert save(run, 2, before).costs.bytes_written == 0
    after = [before[0], [before[1][0][:-1] + b"x"]]
    assert 0 < save(run, 3, after).costs.bytes_written <= SMALL
    assert [read(run, step, "1.0") for step in (1, 2, 3)] == [before[1][0], before[1][0], after[1][0]]


def test_packs_that_several_ranks_use_are_counted_once(run: Run) -> None:
    save(run, 1, [[bytes_of(1, 50_000)], [bytes_of(2, 50_000)]])
    manifest = save(run, 2, [[bytes_of(2, 50_000), bytes_of(3, 9)], [bytes_of(1, 50_000)], [bytes_of(2, 50_000)]])
    assert len({pack.id for pack in manifest.packs}) == len(manifest.packs) == 4  # two old ones, rank 0's, the record's
    assert [read(run, 2, f"{rank}.0")[:4] for rank in range(3)] == [bytes_of(seed, 4) for seed in (2, 1, 2)]


def test_a_step_is_saved_once(run: Run) -> None:
    save(run, 1, [[bytes_of(1, 10)]])
    with pytest.raises(StepExists, match="step 1 already") as caught:
        Saving(run, 1)
    assert "gcr rm train.000000000001" in caught.value.hint
    save(run, 2, [[bytes_of(1, 10)]])  # nothing is held any more


def test_a_run_has_one_writer_and_others_write_meanwhile(run: Run) -> None:
    saving = Saving(run, 1)
    with pytest.raises(RunBusy, match="the run 'train' is being written to already"):
        Saving(run, 2)
    save(run_in(run.folder, "other"), 1, [[bytes_of(1, 10)]])
    assert run.steps() == []
    saving.close()
    saving.close()
    save(run, 2, [[bytes_of(1, 10)]])


def test_a_lock_is_kept_over_several_saves(run: Run) -> None:
    with locked(run):
        for step in (1, 2):
            saving = Saving(run, step, SMALL, is_locked=True)
            saving.commit(shares(run, step, [[bytes_of(1, 10)]]), b"what it is", 1, FRAMEWORK)
            with pytest.raises(RunBusy):
                Saving(run, 9)
    save(run, 3, [[bytes_of(1, 10)]])
    assert run.steps() == [1, 2, 3]


@pytest.mark.parametrize("point", ["begun", "share_written", "share_finished", "commit"])
def test_a_save_that_fails_leaves_no_step(
    run: Run, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1, [[bytes_of(1, 100_000)]])
    (tmp_path / "faults").write_text(f"checkpoint.{point} fail\n")
    monkeypatch.setenv("GCR_FAULTS", str(tmp_path / "faults"))
    with pytest.raises(InjectedFault):
        save(run, 2, [[bytes_of(2, 100_000)]])
    assert (run.steps(), run.latest()) == ([1], 1)
    assert read(run, 1, "0.0") == bytes_of(1, 100_000)


def test_a_clean_up_takes_no_pack_of_a_save_under_way_and_all_of_one_that_was_given_up(run: Run) -> None:
    save(run, 1, [[bytes_of(1, 10)]])
    save(run, 2, [[bytes_of(2, 10)]])
    saving = Saving(run, 3, SMALL)
    found = shares(run, 3, [[bytes_of(3, 100_000)]])
    assert run.remove([1]) == 0  # step 1 is gone; what only it needed stays until the save is over
    saving.commit(found, b"what it is", 1, FRAMEWORK)
    assert read(run, 3, "0.0") == bytes_of(3, 100_000)
    given_up = Saving(run, 4, SMALL)
    shares(run, 4, [[bytes_of(4, 100_000)]])
    given_up.close()
    assert run.remove([2]) > 100_000
    assert run.steps() == [3]
    assert run.verify(3) > 100_000


def test_a_pack_that_the_coordinator_does_not_see_is_refused(run: Run) -> None:
    saving = Saving(run, 1, SMALL)
    found = shares(run, 1, [[bytes_of(1, 10)]])
    for pack in (run.folder / "packs").iterdir():
        pack.unlink()
    with pytest.raises(Damaged, match="pack of another process is not here"):
        saving.commit(found, b"what it is", 1, FRAMEWORK)
    assert run.steps() == []


def test_a_full_disk_ends_the_save_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 1, [[bytes_of(1, 10)]])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StoreUnusable, match="ENOSPC"):
        save(run, 2, [[bytes_of(2, 10)]])
    monkeypatch.undo()
    assert run.steps() == [1]


def test_a_damaged_step_is_noticed_and_the_next_save_uses_none_of_it(run: Run) -> None:
    data = [[bytes_of(1, 100_000)]]
    save(run, 1, data)
    pack = max((run.folder / "packs").iterdir(), key=lambda path: path.stat().st_size)
    with pack.open("r+b") as file:
        file.seek(5000)
        file.write(b"not this")
    with pytest.raises(Damaged), Step(run, 1) as step:
        step.read("0.0", 0, 100_000)
    with pytest.raises(Damaged):
        run.verify(1)
    assert save(run, 2, data).costs.bytes_written >= 100_000
    assert run.verify(2) > 100_000


def test_a_child_that_is_forked_during_a_save_keeps_no_lock(run: Run) -> None:
    saving = Saving(run, 1)
    waits, goes = os.pipe()
    begun, begins = os.pipe()
    if not (child := os.fork()):
        os.close(goes)
        saving.close()  # removes nothing of its parent's
        os.write(begins, b"x")
        os.read(waits, 1)
        os._exit(0)
    try:
        assert os.read(begun, 1) == b"x"
        assert run.folder.joinpath("images/train.000000000001.json.new").exists()
        saving.close()
        Saving(run, 1).close()
        assert Store(run.folder).clean() >= 0
    finally:
        for each in (goes, waits, begun, begins):
            os.close(each)
        assert os.waitpid(child, 0)[1] == 0


def test_an_image_of_a_job_is_no_step(run: Run, tmp_path: Path) -> None:
    save(run_in(run.folder, "train2"), 5, [[bytes_of(1, 10)]])
    assert run.steps() == []
    (run.folder / "images/train.12.json").write_text("{}")
    assert run.steps() == []
    with pytest.raises(NoSuchImage):
        Step(run, 5)


def test_nothing_is_made_where_there_is_no_store(run: Run) -> None:
    assert (run.steps(), run.latest()) == ((), None)
    with pytest.raises(NoSuchImage, match="there is no store"):
        Step(run, 5)
    assert not run.folder.exists()


def test_a_manifest_of_a_training_has_no_processes(run: Run) -> None:
    manifest = save(run, 1, [[bytes_of(1, 10)]])
    text = manifest.to_bytes().replace(b'"format": 3', b'"format": 2')
    compressed = manifest.to_bytes().replace(b'"format": 3', b'"format": 4')
    of_a_round = manifest.to_bytes().replace(b'"format": 3', b'"format": 5')
    for wrong in (text, compressed, of_a_round, manifest.to_bytes().replace(b'"world"', b'"w\\u0000"')):
        with pytest.raises(Damaged):
            Manifest.from_bytes(wrong, "it")
    with pytest.raises(WrongImage, match="this gcr reads 1 to 5"):
        Manifest.from_bytes(manifest.to_bytes().replace(b'"format": 3', b'"format": 6'), "it")


@pytest.mark.parametrize("step", [-1, 10**12, True, "1", 1.0])
def test_a_wrong_step_is_refused(run: Run, step: object) -> None:
    with pytest.raises(UsageError, match="is no step"):
        Saving(run, step)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Train", "a.b", "../x", "a" * 49, None])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a run"):
        run_in(tmp_path, name)


@pytest.mark.parametrize("url", ["http://bucket/run", "s3://user:password@bucket/run", "s3:///run", "file://host/run"])
def test_a_wrong_url_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError):
        run_in(url, "train", tmp_path)


def test_the_url_of_a_folder_is_that_folder(tmp_path: Path) -> None:
    assert run_in((tmp_path / "a b").as_uri(), "train") == run_in(tmp_path / "a b", "train")


def kept(last: int | None, every: int | None) -> Iterator[int]:
    steps = [0, 5, 10, 15, 20, 23]
    return (step for step in steps if step not in doomed(steps, last, every))


@pytest.mark.parametrize(
    "last, every, stay",
    [
        (None, None, [0, 5, 10, 15, 20, 23]),
        (None, 10, [0, 5, 10, 15, 20, 23]),
        (2, None, [20, 23]),
        (1, 10, [0, 10, 20, 23]),
        (9, None, [0, 5, 10, 15, 20, 23]),
    ],
)
def test_retention_keeps_the_last_ones_and_multiples(last: int | None, every: int | None, stay: list[int]) -> None:
    assert list(kept(last, every)) == stay
