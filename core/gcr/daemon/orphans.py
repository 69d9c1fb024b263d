"""Keeps memory of processes that have ended while their job was suspended, where other processes hold some of it.

On a device such memory lives until its last holder lets go. So the copies of the ended process stay where they are
until the job has come back, or no holder is left.
"""

import logging
from functools import partial

from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.engine.duplicates import staged_with
from gcr.engine.orphaned import Orphaned
from gcr.engine.tidying import quietly
from gcr.errors import UnsupportedState
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.process import Process
from gcr.processes import ProcessIdentity, alive
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")


def orphaned(node: Coordinator, job: Job) -> list[Orphaned]:
    """Returns the ended processes of a suspended job that have lent memory to living ones: it comes back for these."""
    found = [(each, _lent(node, job, each)) for each in job.ends.orphans.values()]
    return [_target(node, job, each, known) for each, known in found if known]


def _target(node: Coordinator, job: Job, process: Process, known: ProcessDecision) -> Orphaned:
    transaction = process.suspension.transaction
    return Orphaned(process, transaction, node, job.world, job.keeper, known.shared_as)


def settle(node: Coordinator, job: Job) -> None:
    """Lets go of all that is kept of the job's ended processes, but for what other processes of it need."""
    for process in [*job.ends.orphans.values()]:
        if _lent(node, job, process):
            quietly("secure", partial(_secure, job, process))
        elif not _is_under_way(node, job, process):
            _let_go(node, job, process)


def forget_unneeded(job: Job) -> None:
    """Has the supervisor let go of processes that ended while there was no daemon, and that no other one needs."""
    if decision := job.decision:
        for known in decision.processes:
            identity = ProcessIdentity(known.pid, known.start_time, known.stack)
            if not alive(identity) and known.pid not in job.ends.orphans and known.pid not in job.processes:
                quietly("forget", partial(job.keeper().forget, known.pid))


def refuse_image(node: Coordinator, job: Job) -> None:
    """Raises UnsupportedState where an image of the suspended job would lack memory that its processes hold."""
    if left := orphaned(node, job):
        text = f"process {left[0].pid} has ended while job {job.name} was suspended, and others hold memory of it"
        raise UnsupportedState(f"{text}: no image can have that", hint=f"gcr restore {job.name}")


def _is_under_way(node: Coordinator, job: Job, process: Process) -> bool:
    """Tells whether a checkpoint that is not decided yet has memory of it that it lent; its end says what is needed."""
    target = node.jobs.targets.get(process.identity.pid) if job.busy else None
    lends = target is not None and target.process is process and bool(target.shares.lent)
    return lends and _decided(node, job) is None


def _lent(node: Coordinator, job: Job, process: Process) -> ProcessDecision | None:
    """Returns what was decided of a suspended process that has ended, if a living one holds memory of it."""
    record = _decided(node, job)
    known = record.about(process.identity) if record and record.kind != "restored" else None
    return known if known and any(_lives(job, pid) for pid in known.lent_to) else None


def _lives(job: Job, pid: int) -> bool:
    process = job.processes.get(pid)
    return process is not None and not process.ended


def _decided(node: Coordinator, job: Job) -> DecisionRecord | None:
    """Returns what the journal says of the job, also before a command that is under way has told the job."""
    try:
        return node.journal.record(job.name)
    except OSError as error:
        log.warning("job %s: its decision is not read: %s", job.name, error)
        return job.decision


def _secure(job: Job, process: Process) -> None:
    """Makes the daemon keep what was staged with the process, beside the supervisor, as the process did."""
    own, pid, transaction = job.supervision.adopted, process.identity.pid, process.suspension.transaction
    if not own.has_staged(pid):
        fds = staged_with(job.keeper(), pid, transaction)
        try:
            own.stage(pid, fds, 0)
        finally:
            close_all(fds)


def _let_go(node: Coordinator, job: Job, process: Process) -> None:
    for worker in node.fleet.living_workers():
        quietly("forfeit", partial(worker.forfeit, process.hold))
    quietly("forget", lambda: job.keeper().forget(process.identity.pid))
    job.ends.orphans.pop(process.identity.pid, None)
