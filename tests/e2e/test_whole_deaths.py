"""kill -9 of any party at any instant of a stop, or of the restore after it.

The job runs, is suspended, or is in its image, whole. Instants are random, by a seed, and within as long as the command
takes; one at which the party did not run does not count. CRIU itself is not among those that die in a stop: a program
may end with it (docs/whole-processes.md).
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filed import Filed
from machine import PATIENCE, Answer, Machine, until
from stored import store_of
from worlds import SLOW, saved_whole

from gcr.image.store.store import Store
from gcr.processes import descendants, parent_pid

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.timeout(900),
    saved_whole(),
]

FEW, MANY = 1, 50
LONGER = 1.05  # after a death, as helpers begin anew; what is too long now misses, and is measured again
LASTING = ("running", "suspended", "data_suspended")

Party = Callable[[Machine, Filed], list[int]]


def daemon(machine: Machine, _job: Filed) -> list[int]:
    return machine.children("gcr.daemon")


def image_helper(machine: Machine, _job: Filed) -> list[int]:
    return machine.children("gcr.image_helper")


def criu_helper(machine: Machine, _job: Filed) -> list[int]:
    return machine.children("gcr.criu_helper")


def worker(machine: Machine, _job: Filed) -> list[int]:
    return machine.children("gcr.worker")


def supervisor(_machine: Machine, job: Filed) -> list[int]:
    parent = parent_pid(job.pid)
    return [parent] if parent and parent != 1 else []


def criu(machine: Machine, job: Filed) -> list[int]:
    """CRIU's program is started by its own loader."""
    parents = [*criu_helper(machine, job), *supervisor(machine, job)]
    return [pid for parent in parents for pid in descendants(parent) if _name(pid).startswith("ld-linux")]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def strikes(machine: Machine, job: Filed, party: Party, running: "Future[Answer]", instant: float) -> bool:
    """Kills the party so many seconds after the command began, or as soon as there is one. Returns whether it did."""
    end = time.monotonic() + instant
    while time.monotonic() < end and not running.done():
        time.sleep(0.002)
    while not running.done():
        if condemned := party(machine, job):
            for pid in condemned:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return True
    return False


class Instants:
    """Random instants within a command. `took`: seconds of its last run without a death, and more with each death."""

    def __init__(self, seed: str, took: float) -> None:
        self.draw, self.took, self.struck = random.Random(seed), took, 0

    def strike(self, machine: Machine, job: Filed, party: Party, begin: Callable[[], "Future[Answer]"]) -> str:
        """Runs the command, and kills the party meanwhile. Returns what it did, in words."""
        began, instant = time.monotonic(), self.draw.uniform(0, self.took)
        running = begin()
        hit = strikes(machine, job, party, running, instant)
        running.result(2 * PATIENCE)
        said = f"{party.__name__} died after {instant:.3f} s of {self.took:.3f}, {self.struck} before it"
        if hit:
            self.struck, self.took = self.struck + 1, LONGER * self.took
        else:
            self.took = time.monotonic() - began
            print(f"missed: {said}")
        return said


def seconds(begin: Callable[[], "Future[Answer]"]) -> float:
    """Returns how long a command takes that nothing disturbs."""
    began = time.monotonic()
    done = begin().result(PATIENCE)
    assert done.code == 0, done.body
    return time.monotonic() - began


def stop(machine: Machine, name: str) -> "Future[Answer]":
    words = ("checkpoint", "llm", "--image", name, "--stop", "--store", str(store_of(machine)))
    return machine.asking.submit(machine.gcr, *words)


def restore(machine: Machine, name: str) -> "Future[Answer]":
    return machine.asking.submit(machine.gcr, "restore", "--image", name, "--store", str(store_of(machine)))


def names(machine: Machine) -> Sequence[str]:
    return [*Store(store_of(machine)).images.names()] if store_of(machine).exists() else []


def at_rest(machine: Machine) -> str:
    """Brings the job back where it lies suspended. Returns `running`, or `gone`."""

    def rest() -> str | None:
        row = machine.job("llm")
        if row is None:
            return "gone"
        if row["state"] == "running" and not row["processes"]:  # they are to come back, or it is just over
            return None
        return row["state"] if row["state"] in LASTING and not row["changing"] else None

    state = until(rest, PATIENCE, "the job comes to rest")
    if state in LASTING[1:]:
        back = machine.ask("restore", "llm")
        if not back.code:
            return "running"
        error = back.body["error"]  # its processes died with CRIU and its parent, or its parent alone did, while parked
        assert error["state"] == "exited" or " --image " in error["hint"], error
        state = until(lambda: rest() == "gone" and "gone", PATIENCE, "the job is forgotten")
    return state


def brought_back(machine: Machine, job: Filed, name: str, before: str) -> None:
    """Brings the job back from wherever it is, and looks at it."""
    if at_rest(machine) == "gone":
        assert name in names(machine), f"the job is gone, and there is no image {name}"
        done = restore(machine, name).result(PATIENCE)
        assert done.code == 0, done.body
    assert job.ask() == before


OURS: Sequence[Party] = (criu_helper, daemon, image_helper, worker, supervisor)
OF_THE_RESTORE: Sequence[Party] = (criu, daemon, image_helper, worker, supervisor)


def rows(parties: Sequence[Party]) -> list[Any]:
    """Returns the parties with the number of deaths; in a quick run the first alone dies."""
    first = [pytest.param(parties[0], FEW, id=f"{parties[0].__name__}-{FEW}")]
    return first + [pytest.param(party, MANY, marks=SLOW, id=f"{party.__name__}-{MANY}") for party in parties]


@pytest.mark.parametrize(("party", "count"), rows(OURS))
def test_a_death_during_a_stop_loses_nothing(machine: Machine, job: Filed, party: Party, count: int) -> None:
    before = job.ask()
    instants = Instants(f"{party.__name__} {count}", seconds(partial(stop, machine, "first")))
    brought_back(machine, job, "first", before)
    while instants.struck < count:
        name = f"stop-{instants.struck}"
        said = instants.strike(machine, job, party, partial(stop, machine, name))
        with noted(said):
            brought_back(machine, job, name, before)
        machine.gcr("rm", name, "--store", str(store_of(machine)))


@pytest.mark.parametrize(("party", "count"), rows(OF_THE_RESTORE))
def test_a_death_during_the_restore_loses_nothing(machine: Machine, job: Filed, party: Party, count: int) -> None:
    before = job.ask()
    assert stop(machine, "night").result(PATIENCE).code == 0
    instants = Instants(f"{party.__name__} {count}", seconds(partial(restore, machine, "night")))
    while instants.struck < count:
        machine.end_by_pid(job.pid)
        said = instants.strike(machine, job, party, partial(restore, machine, "night"))
        with noted(said):
            brought_back(machine, job, "night", before)


@contextmanager
def noted(said: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(said)
        raise
