"""kill -9 of any party at any instant of a checkpoint in place on AMD, or of the restore after it.

The job runs, is suspended, or is in its private place, whole. Instants are random, by a seed; one at which the party
did not run does not count. CRIU itself is not among those that die in a checkpoint (docs/whole-processes.md).
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filed import Filed, back, stop
from machine import PATIENCE, Machine, alive
from stored import store_of
from test_whole_deaths import (
    MANY,
    Party,
    at_rest,
    criu,
    criu_helper,
    daemon,
    image_helper,
    strikes,
    worker,
)
from worlds import AMD, SLOW

from gcr.processes import parent_pid

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.timeout(900),
    pytest.mark.parametrize("machine", [AMD], indirect=True, ids=lambda world: world.name),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="/dev/fuse is not there to stand for /dev/kfd"),
]
PARK_S, RESTORE_S = 1.2, 1.0  # about as long as each takes
FEW = 2


def records(machine: Machine) -> list[Path]:
    return sorted((machine.folder / "state/gcr/jobs").glob("llm.*.json"), key=lambda path: path.stat().st_mtime)


def parent(machine: Machine, _job: Filed) -> list[int]:
    """The supervisor, also of a job that is parked."""
    pid = json.loads(records(machine)[-1].read_text())["supervisor"]
    return [pid] if alive(pid) else []


def rows(*parties: Party) -> list[object]:
    few = [pytest.param(party, FEW, id=f"{party.__name__}-{FEW}") for party in parties]
    return few + [pytest.param(party, MANY, marks=SLOW, id=f"{party.__name__}-{MANY}") for party in parties]


def brought_back(machine: Machine, job: Filed, before: str) -> None:
    """Brings the job back from wherever it is, looks at it, and sees to it that it has a parent."""
    if at_rest(machine) == "gone":
        failed = machine.gcr("restore", "llm")
        done = machine.gcr(*failed.body["error"]["hint"].split()[1:])
        assert done.code == 0, (failed.body, done.body)
    assert job.ask() == before
    if parent_pid(job.pid) == 1:
        stop(machine, "again")
        back(machine, "again")
        machine.gcr("rm", "again", "--store", str(store_of(machine)))


def died(machine: Machine, job: Filed, party: Party, command: str, instant: float) -> bool:
    """Returns whether the party was killed at this instant of the command."""
    running = machine.asking.submit(machine.gcr, command, "llm")
    hit = strikes(machine, job, party, running, instant)
    running.result(2 * PATIENCE)
    return hit


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    """Removes the places of jobs that the end of the test leaves parked."""
    yield
    for record in records(machine):
        for place in Path("/dev/shm").glob(f"gcr-parked-llm-{record.name.split('.')[1]}-*"):
            shutil.rmtree(place)


def lose_nothing(machine: Machine, job: Filed, party: Party, count: int, command: str, seconds: float) -> None:
    """Kills the party `count` times, each time within so many seconds of the command, and brings the job back."""
    draw, before, struck = random.Random(f"{party.__name__} {count}"), job.ask(), 0
    while struck < count:
        if command == "restore":
            assert machine.gcr("checkpoint", "llm").code == 0
        instant = draw.uniform(0, seconds)
        hit = died(machine, job, party, command, instant)
        try:
            brought_back(machine, job, before)
        except BaseException as error:
            error.add_note(f"{party.__name__} died after {instant:.3f} s, number {struck}")
            raise
        struck += hit


@pytest.mark.parametrize(("party", "count"), rows(criu_helper, daemon, image_helper, worker, parent))
def test_a_death_during_the_checkpoint_loses_nothing(machine: Machine, job: Filed, party: Party, count: int) -> None:
    lose_nothing(machine, job, party, count, "checkpoint", PARK_S)


@pytest.mark.parametrize(("party", "count"), rows(criu, daemon, image_helper, worker, parent))
def test_a_death_during_the_restore_loses_nothing(machine: Machine, job: Filed, party: Party, count: int) -> None:
    lose_nothing(machine, job, party, count, "restore", RESTORE_S)
