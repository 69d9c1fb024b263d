"""A disk fails at any one call of a store or of the journal: the job runs or can be restored; nothing is half there."""

import errno
import shutil
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from machine import Answer, Machine, Victim, alive, until
from worlds import SLOW, slowly

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from imaging import check

from gcr.image.store.store import Store

pytestmark = pytest.mark.on_disk

HERE = Path(__file__).parent / "failing_disk"
OF_A_RECORD = ("open", "write", "replace", "unlink")


@dataclass
class Disk:
    """See failing_disk/sitecustomize.py."""

    control: Path

    def fail(self, folder: Path, number: int, error: int) -> None:
        """Counts calls that change something below `folder` from now on; the one of this number fails."""
        (self.control / "calls").unlink(missing_ok=True)
        fresh = self.control / "fresh"
        fresh.write_text(f"{number} {error} {folder}")
        fresh.replace(self.control / "rule")

    def heal(self) -> list[str]:
        """The calls since `fail`."""
        (self.control / "rule").unlink()
        calls = self.control / "calls"
        return [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []


@pytest.fixture
def disk(machine: Machine) -> Disk:
    folder = machine.folder / "disk"
    shutil.copytree(HERE, folder)
    machine.extra["PYTHONPATH"] = str(folder)
    return Disk(folder)


def imaged(machine: Machine, store: Path) -> Answer:
    return machine.ask("checkpoint", "llm", image="warm", wait="durable", store=str(store))


def is_whole(path: Path) -> list[str]:
    """Returns the images of this store; checks that all their bytes are right."""
    if not path.exists():
        return []
    store = Store(path)
    for name in store.images.names():
        check(store, name)
    return list(store.images.names())


def came_of(machine: Machine, gone: Answer, store: Path) -> None:
    """The checkpoint did without the failed call, or all of it was taken back."""
    state = machine.job("llm")["state"]  # type: ignore[index]
    if gone.code:
        assert gone.body["error"]["code"] in ("image_failed", "store_unusable", "unsafe_runtime"), gone.body
        assert (state, is_whole(store)) == ("running", [])
    else:
        assert (state, is_whole(store)) == ("suspended", ["warm"])
        machine.come_back()


def comes_back_from_its_image(machine: Machine, store: Path) -> None:
    gone = imaged(machine, store)
    assert gone.code == 0, gone.body
    back = machine.ask("restore", "llm", image="warm", store=str(store))
    assert back.code == 0, back.body


def begun(machine: Machine) -> tuple[Victim, str, int]:
    """The job, what it says of its memory, and the daemon's pid."""
    job = machine.told("llm", "alloc 3 100000")
    return job, job.ask(), machine.daemon()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("error", "step"),
    [
        pytest.param(errno.EIO, 7, id="some"),
        pytest.param(errno.EIO, 1, id="EIO", marks=SLOW),
        pytest.param(errno.ENOSPC, 1, id="ENOSPC", marks=SLOW),
    ],
)
def test_whichever_call_on_a_store_fails(machine: Machine, disk: Disk, error: int, step: int) -> None:
    (job, before, daemon), failed = begun(machine), set[str]()
    for number in count(0, step):
        store = machine.folder / f"store-{number}"
        disk.fail(store, number, error)
        gone = imaged(machine, store)
        calls = disk.heal()
        came_of(machine, gone, store)
        assert job.ask() == before
        if gone.code:
            comes_back_from_its_image(machine, store)
        assert (is_whole(store), job.ask()) == (["warm"], before)
        shutil.rmtree(store)
        if number >= len(calls):
            break
        failed.add(calls[number])
    assert alive(daemon)
    assert step > 1 or failed >= {"open", "pwritev", "write", "fsync", "rename", "link", "unlink"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("error", [errno.EIO, slowly(errno.ENOSPC)], ids=["EIO", "ENOSPC"])
def test_whichever_call_on_the_journal_fails(machine: Machine, disk: Disk, error: int) -> None:
    """The command is refused and nothing of it is left, or it is done."""
    (job, before, daemon), failed = begun(machine), set[str]()
    (journal,) = (machine.folder / "state").glob("**/journal")
    for command, there, still in (("checkpoint", "suspended", "running"), ("restore", "running", "suspended")):
        for number in count():
            if machine.job("llm")["state"] == there:  # type: ignore[index]
                assert machine.ask("restore" if there == "suspended" else "checkpoint", "llm").code == 0
            disk.fail(journal, number, error)
            answer = machine.ask(command, "llm")
            calls = disk.heal()
            if answer.code:
                assert answer.body["error"]["code"] == "rolled_back", (number, answer.body)
                assert machine.job("llm")["state"] == still, number  # type: ignore[index]
                again = machine.ask(command, "llm")
                assert again.code == 0, again.body
            assert machine.job("llm")["state"] == there, number  # type: ignore[index]
            if number >= len(calls):
                break
            failed.add(f"{command} {calls[number]}")
    assert job.ask() == before
    assert alive(daemon)
    assert failed >= {f"{command} {call}" for command in ("checkpoint", "restore") for call in OF_A_RECORD}


def test_a_decision_that_is_over_is_removed_when_the_disk_works_again(machine: Machine, disk: Disk) -> None:
    job, before, _ = begun(machine)
    (journal,) = (machine.folder / "state").glob("**/journal")
    machine.leave()
    held = machine.folder / "held"
    machine.inject(f"restore.opened_one hold {held}")
    running = machine.command("restore")
    machine.wait_held()
    disk.fail(journal, 0, errno.EIO)  # the next call, which removes the record
    held.unlink()
    assert running.result(60).code == 0
    assert disk.heal()[0] == "unlink"
    until(lambda: not [*journal.iterdir()] or None, 10, "the record is gone")
    assert (machine.settled(), job.ask()) == ("running", before)
