"""A power cut at any instant of a save by several ranks: earlier steps are whole, the new one too or not there."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from unittest.mock import patch

import pytest
from disk import Disk, State

from gcr.checkpoints.loading import Step
from gcr.checkpoints.run import Run, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.image.read import fetching
from gcr.imageerrors import Damaged, NoSuchImage

SMALL = 32 << 10
Ranks = Sequence[bytearray]


def data_of(seed: int, size: int = 9000) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


OLD: Ranks = [data_of(1), data_of(2, SMALL + 5000)]
NEW: Ranks = [data_of(1), OLD[1][SMALL:], data_of(4, 5000)]
"""One rank more. The first one's bytes are there already; the second one's are a fifth of a pack, which is left."""


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many states are read: starting the threads of a reader would take longer than all else."""
    monkeypatch.setattr(fetching, "READERS", 1)
    monkeypatch.setattr(fetching, "COMPARERS", 1)


def save(run: Run, step: int, ranks: Ranks) -> None:
    """Saves as the ranks of a training do: each writes its share, and the coordinator publishes last."""
    going = run.going(step, 1, None)
    saving = Saving(run, step, SMALL)
    shares = [write_share(run, step, [(f"{n}.0", memoryview(data))], SMALL, 1, going) for n, data in enumerate(ranks)]
    saving.commit(shares, b"what it is", len(ranks), Framework("torch", {}))


def read(run: Run, step: int) -> Ranks:
    with Step(run, step, threads=1) as found:
        return [bytearray(found.read(f"{n}.0", 0, found.size(f"{n}.0"))) for n in range(found.progress["world"])]


def recorded(root: Path, act: Callable[[Run], None]) -> Disk:
    run = run_in(root / "store", "train")
    save(run, 1, OLD)
    disk = Disk(run.folder)
    with disk.recorded():
        act(run)
    return disk


def steps_after(state: State, root: Path) -> dict[int, Ranks]:
    """Returns the steps that a training finds after a power cut, also after its clean-up; each must load."""
    state.write_to(root / "after")
    run = run_in(root / "after", "train")
    found = {step: read(run, step) for step in run.steps()}
    assert run.latest() == max(found, default=None)
    run.store().clean()
    assert {step: read(run, step) for step in run.steps()} == found
    rmtree(root / "after")
    return found


def states(disk: Disk) -> Iterator[State]:
    """Yields all states, from the end: what is wrong is wrong there first."""
    return reversed([*disk.states()])


def test_while_a_step_is_saved_and_the_one_before_goes(tmp_path: Path) -> None:
    """As under `keep_last=1`: there is a step at every instant."""

    def saves(run: Run) -> None:
        save(run, 2, NEW)
        run.remove([1])

    looked_at, found = 0, list[dict[int, Ranks]]()
    disk = recorded(tmp_path, saves)
    assert run_in(tmp_path / "store", "train").manifest(2).costs.bytes_written == 10_000
    for state in states(disk):
        found.append(steps_after(state, tmp_path))
        assert found[-1] in ({1: OLD}, {1: OLD, 2: NEW}, {2: NEW})
        looked_at += 1
    assert looked_at > 50 and {2: NEW} in found


def test_a_step_that_was_saved_is_there(tmp_path: Path) -> None:
    for state in recorded(tmp_path, lambda run: save(run, 2, NEW)).last_states():
        assert steps_after(state, tmp_path) == {1: OLD, 2: NEW}


@pytest.mark.parametrize("left_out", [pytest.param(".pack.new", marks=pytest.mark.slow), "packs", ".json.new"])
def test_a_sync_that_is_left_out_is_seen(tmp_path: Path, left_out: str) -> None:
    """The tests above would find each of them missing."""

    def saves_carelessly(run: Run) -> None:
        sync = os.fsync

        def forget(fd: int) -> None:
            if not str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(left_out):
                sync(fd)

        with patch.object(os, "fsync", forget):
            save(run, 2, NEW)

    with pytest.raises((Damaged, NoSuchImage, AssertionError)):
        for state in states(recorded(tmp_path, saves_carelessly)):
            assert steps_after(state, tmp_path) in ({1: OLD}, {1: OLD, 2: NEW})
