"""`gcr restore --without`: a process that its driver does not give back is ended, and the others come back.

Written down before the process is killed. A daemon that dies in between has a successor that ends the process, so it
never comes back, and the others stay suspended. From its end on it is a process that ended while its job was suspended:
others keep what they hold of its memory (orphans.py).
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from gcr.daemon import departures
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.engine.node import Course, note
from gcr.engine.unreturned import process_lost
from gcr.errors import WrongState
from gcr.job.decisions import DecisionRecord, Unreturned
from gcr.job.states import State
from gcr.losterrors import NotLost
from gcr.processes import ProcessIdentity, alive

log = logging.getLogger("gcr.daemon")

END_S = 10.0
POLL = 0.01


class Standing(StrEnum):
    """The driver's word about a process of a suspended job."""

    WELL = "well"
    REFUSED = "refused"  # it was not given back, and may be at another attempt
    LOST = "lost"


def check(job: str, asked: Collection[int], there: Mapping[int, Standing], ended: Collection[int] = ()) -> None:
    """Refuses a restore that would give up another process than the user has said, or all of them.

    there: the living processes of the job · ended: pids of those that ended while it was suspended.
    Raises NotLost for a process that the user may not give up, ProcessLost for one that the user did not name.
    """
    for pid in sorted(set(asked) - set(ended)):
        if pid not in there:
            raise NotLost(f"process {pid} is none of job {job}", hint="gcr ps")
        if there[pid] is Standing.WELL:
            text = f"the driver has not refused to give process {pid} of job {job} back"
            raise NotLost(text, hint=f"gcr restore {job}")
    left = {pid: standing for pid, standing in there.items() if pid not in asked}
    if asked and not left:
        raise NotLost(f"no other process of job {job} is left to come back", hint="end its program")
    lost = [pid for pid, standing in left.items() if standing is Standing.LOST]
    if lost and len(lost) < len(left):
        raise process_lost(job, [*lost, *(pid for pid in asked if pid in there)])


def refuse_parked(job: Job, asked: Sequence[int]) -> None:
    """Raises NotLost where no process of the job is left, before any is made again."""
    if asked and job.supervision.parked:
        raise NotLost(f"the processes of job {job.name} are in an image: none is lost", hint=f"gcr restore {job.name}")


def give_up(
    node: Coordinator, job: Job, asked: Sequence[int], course: Course, refuse: Callable[[Collection[int]], object]
) -> tuple[int, ...]:
    """Ends the processes that a restore is to do without. Returns their pids.

    refuse: raises where the restore without these processes cannot be begun; their end could not be undone.
    Raises NotLost, ProcessLost, WrongState before anything was touched; WrongState for a process that does not end.
    """
    record = job.decision
    with suppress(OSError):
        record = node.journal.record(job.name)
    if record is None or record.kind == "restored" or job.decision is None:
        if asked:
            raise WrongState(f"job {job.name} is not suspended, it is {job.state}", state=job.state, hint="gcr ps")
        return ()
    there = _standings(job, record)
    wanted = {*asked, *(record.given_up & there.keys())}
    check(job.name, wanted, there, [known.pid for known in record.processes if known.pid not in there])
    ending = [job.processes[pid].identity for pid in sorted(wanted & there.keys())]
    if ending:
        refuse(wanted)
    for identity in ending:
        note(node.journal, job.name, Unreturned(identity.pid, given_up=True))
    if ending:
        course.reach("given_up")
        _end(job.name, ending)
        node.jobs.settle(job)  # an end that is seen later would have the restore begun again
    return tuple(sorted(wanted))


def end_given_up(record: DecisionRecord) -> None:
    """Ends what a daemon that died was to end. Raises nothing."""
    given_up = record.given_up
    known = (ProcessIdentity(each.pid, each.start_time, each.stack) for each in record.processes)
    if left := [identity for identity in known if identity.pid in given_up and alive(identity)]:
        try:
            _end(record.job, left)
        except WrongState as error:
            log.warning("job %s: %s", record.job, error)


def _standings(job: Job, record: DecisionRecord) -> dict[int, Standing]:
    refused = {each.pid for each in record.unreturned}
    standings = {}
    for process in departures.staying(job.living):
        pid = process.identity.pid
        kept = Standing.REFUSED if pid in refused else Standing.WELL
        standings[pid] = Standing.LOST if process.state == State.LOST else kept
    return standings


def _end(job: str, processes: Sequence[ProcessIdentity]) -> None:
    """Kills processes and waits for their end. Raises WrongState for one that does not end."""
    for identity in processes:
        log.warning("job %s: process %d is given up, and killed", job, identity.pid)
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)
    end = time.monotonic() + END_S
    while left := [each.pid for each in processes if alive(each)]:
        if time.monotonic() > end:
            text = f"process {left[0]} of job {job} was killed, and has not ended"
            raise WrongState(text, hint=f"gcr restore {job}, in a while")
        time.sleep(POLL)
