"""Jobs that outlived their daemon, suspended: a new daemon learns them from the journal."""

import logging
import os
import threading
import time
from collections.abc import Callable

from gcr.control import ControlMeans, ControlPhase
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.ended import note_job_end
from gcr.daemon.giving_up import end_given_up
from gcr.daemon.jobs import Job
from gcr.daemon.recall import recall_labels, recall_program
from gcr.daemon.worlds import recorded_world
from gcr.engine.control_phases import recorded_phases
from gcr.engine.node import decide
from gcr.engine.recover import driver_phase
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, NotOurs, UsageError, WrongDevice, WrongState
from gcr.imageerrors import NotRestored
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.migrations import refuse_to_return
from gcr.job.moves import places_of
from gcr.job.placement import Placement
from gcr.job.process import Process
from gcr.job.runs import STOPPED
from gcr.job.states import State, Way
from gcr.job.suspension import Suspension
from gcr.processes import ProcessIdentity, alive, owner_uid, started_at

log = logging.getLogger("gcr.daemon")

POLL = 0.05  # seconds


def load_journal(node: Coordinator, recover: Callable[[Job], object]) -> None:
    """Adds the jobs of the journal whose processes live. `recover` begins the recovery of one."""
    for record in node.journal.records():
        end_given_up(record)
        job = Job(record.job, token="", world=recorded_world(record))
        take_in(job, record)
        if not job.processes:
            node.journal.forget(record.job)
            was = STOPPED if record.away else State.SUSPENDED.value
            note_job_end(record.job, "", was, record.image if record.away else None)
            continue
        node.jobs.add(job)
        threading.Thread(target=_recall, args=(node, job), name="gcr-recall", daemon=True).start()
        if record.away:  # its agents come once they are called back
            continue
        if record.kind == "driver":
            job.turn.settled.clear()
            threading.Thread(target=_ask_driver, args=(node, job), name="gcr-recover", daemon=True).start()
        else:
            recover(job)


def revived(node: Coordinator, job: Job, pid: int, record: DecisionRecord) -> None:
    """Takes in a job that CRIU has brought back, suspended; its agents come later. `pid`: of its program.

    Raises WrongState, UsageError; NotOurs for another user's job: the daemon would read the image as itself;
    WrongDevice where a device of the job is not there; GivenAway, MigrationUnderWay where it moves; RolledBack where
    the decision cannot be written.
    """
    if job.owner != os.getuid():
        raise NotOurs(f"this daemon brings back jobs of user {os.getuid()} alone")
    if record.job != job.name or owner_uid(pid) != job.owner:
        raise UsageError(f"that is not the decision on job {job.name}, or not its program")
    refuse_to_return(job.name)
    _refuse_missing(node, job, record)
    node.jobs.settle(job)  # processes of an attempt in which CRIU died may have ended a moment ago
    with node.jobs.lock:
        if job.processes:  # a decision on none is that attempt's, kept since a command has the job
            raise WrongState(f"job {job.name} is here already", state=job.state, hint="gcr ps")
        decide(node.journal, record)
        take_in(job, record)
        job.program.runs_as(pid)


def refuse_unmade(node: Coordinator, job: Job) -> None:
    """Raises NotRestored where CRIU's plugin has failed: then the device does not know a process. CRIU says nothing."""
    control = node.control(job.world)
    if control.means is not ControlMeans.PROCESS:
        return
    for pid in [process.identity.pid for process in job.begun]:
        if control.inspect(pid).phase is ControlPhase.ABSENT:
            text = f"the device does not know process {pid}: CRIU's plugin did not bring its state back"
            raise NotRestored(text, hint="is the device as it was? the image is whole")


def _refuse_missing(node: Coordinator, job: Job, record: DecisionRecord) -> None:
    """Raises WrongDevice where a device of the job is not here, and no other can take its place."""
    used = {device for each in record.processes for device in (*each.bytes, *each.ballast)}
    if not used:
        return
    control = node.control(job.world)
    present = control.devices()
    missing = sorted(used - {each.uuid for each in present})
    if not missing:
        return
    if not record.devices or control.means is not ControlMeans.DRIVER:
        text = f"the job was on device {missing[0]}, and this machine does not have it"
        raise WrongDevice(text, hint="gcr devices")
    places_of(record.devices, present)
    control.check_move({})


def take_in(job: Job, record: DecisionRecord) -> None:
    """Enters the processes of a decision that live: they are suspended, and their agents come later."""
    job.decision = record
    if record.away and record.image:
        job.token, job.ends.stopped_into = record.away, record.image
    for known in record.processes:
        identity = ProcessIdentity(known.pid, known.start_time, known.stack)
        if not alive(identity) and known.lent_to:
            job.ends.orphans[known.pid] = _suspended(job, record, identity, known)
        elif alive(identity):
            job.owner = owner_or_ours(known.pid)
            job.processes[known.pid] = _suspended(job, record, identity, known)
            job.context_on |= {*known.bytes, *known.ballast}
            job.program.started = min(job.program.started, started_at(known.pid))


def _recall(node: Coordinator, job: Job) -> None:
    """Reads again the facts of a job that gcr shows: its program and the labels of its devices."""
    recall_program(job)
    recall_labels(job, node.labels, lambda: node.control(job.world).devices())


def _ask_driver(node: Coordinator, job: Job) -> None:
    """Takes each process\'s state from the driver: suspended if the driver holds it, else running."""
    try:
        for process in job.living:
            process.way = Way.DRIVER
            process.settle(driver_phase(_unlocked_phase(node, job, process.identity.pid)))
        if job.state == State.RUNNING:
            node.journal.forget(job.name)
            job.decision = None
    except GcrError as error:
        log.error("job %s: not recovered: %s", job.name, error)
    finally:
        job.turn.settled.set()


def _unlocked_phase(node: Coordinator, job: Job, pid: int) -> ControlPhase:
    """Returns the phase once the process is not between two. r580 reports LOCKED during a call of a dead caller."""
    control, end = node.control(job.world), time.monotonic() + node.config.drain_s
    phases = recorded_phases(job.processes[pid], node, lambda: control, {})
    phases.await_answer()
    phases.overtake_lock()
    while (phase := control.phase(pid)) in (ControlPhase.LOCKED, ControlPhase.BUSY) and time.monotonic() < end:
        if phase == ControlPhase.LOCKED:
            quietly("unlock", lambda: control.unlock(pid, 1.0))
        time.sleep(POLL)
    return phase


def _suspended(job: Job, record: DecisionRecord, identity: ProcessIdentity, known: ProcessDecision) -> Process:
    data_only = record.data_only
    at_rest = State.DATA_SUSPENDED if data_only else State.SUSPENDED
    return Process(
        job.name,
        identity,
        State.RESTORING if record.kind == "restored" else at_rest,
        Way.DATA_ONLY if data_only else Way.WHOLE,
        copied_out=known.copied_out,
        suspension=Suspension(
            record.transaction,
            dict(known.bytes),
            dict(known.ballast),
            Placement(known.now, known.tried),
            was_saved=True,
        ),
        waits=known.waits,
    )


def owner_or_ours(pid: int) -> int:
    """Returns the user of a process; the daemon's own for a process that is just ending."""
    found = owner_uid(pid)
    return os.getuid() if found is None else found
