"""The parts that a checkpoint and a restore share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from gcr.api.requests import TransferRequest
from gcr.daemon import departures, orphans, reports
from gcr.daemon.active import Active
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.engine.node import Course
from gcr.engine.plan import Plan
from gcr.engine.target import Target
from gcr.errors import BackendMissing, GcrError
from gcr.job.process import Process
from gcr.protocol.operations.worker import ArenaFacts

DEFAULT_TIMEOUT = 300.0


def course_of(node: Coordinator, request: TransferRequest, asked: Asked) -> Course:
    timeout = request.timeout or DEFAULT_TIMEOUT
    return Course(request.op, node.next_transaction(), timeout, asked.progress, asked.cancelled)


def target_of(node: Coordinator, job: Job, process: Process, transaction: int) -> Target:
    return Target(process, transaction, node, job.world, job.keeper)


def suspended(node: Coordinator, job: Job, processes: Iterable[Process]) -> list[Target]:
    """Returns the targets of processes that are suspended, with what they have on the devices that they left.

    Raises UnsupportedState where they hold memory of a process that has ended: it would be in no image of them.
    """
    orphans.refuse_image(node, job)
    targets = [target_of(node, job, process, process.suspension.transaction) for process in processes]
    for target in targets:
        target.come_back({})
    return targets


def carry_out(node: Coordinator, job: Job, plan: Plan, targets: list[Target]) -> None:
    """Runs the transaction. After a failure the job has its decision, if there is one, and is recovered if need be."""
    with Active(node.jobs, targets):
        try:
            plan.run()
        except BaseException:
            job.decision = plan.decision  # a decision stands, also where a later step failed
            departures.settle_ends(job)
            node.recovery.begin_if_uneven(job)
            if not job.living:  # no process is left that it is about
                with suppress(OSError):
                    node.forget_decision(job)
            raise


def slowest_link(targets: Sequence[Target], speed: Callable[[ArenaFacts], float | None]) -> float | None:
    """Returns the rate of the slowest link used; None where none was measured, or its worker has died since."""
    rates: list[float] = []
    with suppress(GcrError):
        workers = [worker for target in targets for worker in target.workers()]
        rates += filter(None, (speed(worker.arena()) for worker in workers))
    return min(rates, default=None)


def refuse_other_backend(job: Job, wanted: str | None) -> None:
    if wanted and wanted != job.world.backend:
        raise BackendMissing(f"job {job.name} uses {job.world.backend}, not {wanted}", hint="leave --backend out")


@contextmanager
def saying_state(job: Job) -> Iterator[None]:
    """Adds to a command's error the state in which it leaves the job (docs/contract.md §4)."""
    try:
        yield
    except GcrError as error:
        error.state = error.state or reports.shown(job.state)
        raise
