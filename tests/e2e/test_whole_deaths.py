"""kill -9 of any party at any instant of a stop, or of the restore after it.

The job runs, is suspended, or is in its image, whole. Instants are random, by a seed; one at which the party did not
run does not count. CRIU itself is not among those that die in a stop: a program may end with it
(docs/whole-processes.md).
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
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
STOP_S, RESTORE_S = 1.6, 1.0  # about as long as each takes
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
        return "gone" if row is None else row["state"] if row["state"] in LASTING and not row["changing"] else None

    state = until(rest, PATIENCE, "the job comes to rest")
    if state in LASTING[1:]:
        back = machine.ask("restore", "llm")
        if not back.code:
            return "running"
        assert back.body["error"]["state"] == "exited", back.body  # its processes died with CRIU and its parent
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
    draw, before, struck = random.Random(f"{party.__name__} {count}"), job.ask(), 0
    while struck < count:
        name, instant = f"stop-{struck}", draw.uniform(0, STOP_S)
        running = stop(machine, name)
        hit = strikes(machine, job, party, running, instant)
        running.result(2 * PATIENCE)
        try:
            brought_back(machine, job, name, before)
        except BaseException as error:
            error.add_note(f"{party.__name__} died after {instant:.3f} s, number {struck}")
            raise
        struck += hit
        machine.gcr("rm", name, "--store", str(store_of(machine)))


@pytest.mark.parametrize(("party", "count"), rows(OF_THE_RESTORE))
def test_a_death_during_the_restore_loses_nothing(machine: Machine, job: Filed, party: Party, count: int) -> None:
    draw, before, struck = random.Random(f"{party.__name__} {count}"), job.ask(), 0
    assert stop(machine, "night").result(PATIENCE).code == 0
    while struck < count:
        instant = draw.uniform(0, RESTORE_S)
        running = restore(machine, "night")
        hit = strikes(machine, job, party, running, instant)
        running.result(2 * PATIENCE)
        try:
            brought_back(machine, job, "night", before)
        except BaseException as error:
            error.add_note(f"{party.__name__} died after {instant:.3f} s, number {struck}")
            raise
        struck += hit
        machine.end_by_pid(job.pid)
