"""Contexts of suspended jobs that leave their devices once another program wants the room.

A checkpoint with `context_later` leaves a context there while nothing else needs the room, beside the job's resident
memory. The journal says so, so a daemon that begins knows it. Once that memory is evicted (residents.py), the driver
saves the context, on a thread of its own. A program that finds no room, or begins, waits for contexts that are leaving,
LEFT_WITHIN_S at most.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from threading import Lock, Thread

from msgspec import Struct, field

from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.occupied import Occupied
from gcr.errors import GcrError, WrongState
from gcr.job.decisions import CONTEXT_LATER
from gcr.job.states import State

log = logging.getLogger("gcr.daemon")

LEFT_WITHIN_S = 3.0  # a program that begins waits 5 s for its welcome


class Contexts(Struct):
    """The contexts that may leave. Thread-safe. `save`: has that of a job leave; raises GcrError."""

    jobs: Jobs
    occupied: Occupied
    save: Callable[[Job], object] = lambda _job: None  # set by the server
    _stays: dict[str, int] = field(default_factory=dict)  # by job: the transaction after which it could not leave
    _leaving: dict[str, Thread] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def follow(self, hold: str) -> None:
        """Has a job's context leave after its memory was evicted. `hold`: names that memory. Raises nothing."""
        self._begin(job for job in self._there() if any(process.hold == hold for process in job.begun))

    def make_way(self, devices: Collection[str]) -> None:
        """Has all of them leave these devices, and waits. Raises nothing."""
        self._begin(job for job in self._there() if not _devices_of(job).isdisjoint(devices))
        self._await(devices)

    def make_way_everywhere(self) -> None:
        """Has all of them leave, and waits. Raises nothing."""
        self.make_way({device for job in self.jobs.all() for device in _devices_of(job)})

    def _there(self) -> list[Job]:
        """Returns the jobs with a context that may leave, without those that a command is changing."""
        there = {job.name: transaction for job in self.jobs.all() if (transaction := _left_by(job))}
        with self._lock:
            self._stays = {name: number for name, number in self._stays.items() if there.get(name) == number}
            may = there.keys() - self._stays.keys()
        return [job for job in self.jobs.all() if job.name in may and not job.busy]

    def _begin(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            with self._lock:
                if job.name in self._leaving:
                    continue
                thread = Thread(target=self._leave, args=(job,), name="gcr-context", daemon=True)
                self._leaving[job.name] = thread
                thread.start()

    def _leave(self, job: Job) -> None:
        try:
            with ExitStack() as marks:  # agents that find no room ask meanwhile, though the memory is gone
                for device in _devices_of(job):
                    marks.enter_context(self.occupied.on(device))
                self.save(job)
        except WrongState as changed:  # a command was faster
            log.info("job %s: its context stays: %s", job.name, changed)
        except GcrError as error:
            log.warning("job %s: its context stays: %s", job.name, error)
            with self._lock:
                self._stays[job.name] = _left_by(job)
        finally:
            with self._lock:
                self._leaving.pop(job.name, None)

    def _await(self, devices: Collection[str]) -> None:
        end = time.monotonic() + LEFT_WITHIN_S
        with self._lock:
            leaving = [(job, self._leaving[job.name]) for job in self.jobs.all() if job.name in self._leaving]
        for job, thread in leaving:
            if not _devices_of(job).isdisjoint(devices):
                thread.join(max(0.0, end - time.monotonic()))


def _left_by(job: Job) -> int:
    """Returns the transaction of the checkpoint that has left the job's context on its devices for now; 0 for none."""
    decision = job.decision
    later = decision is not None and decision.kind == CONTEXT_LATER and job.state is State.DATA_SUSPENDED
    return decision.transaction if decision and later else 0


def _devices_of(job: Job) -> set[str]:
    suspended = (process.suspension for process in job.begun)
    return {device for each in suspended for device in (*each.bytes_by_device, *each.ballast_by_device)}
