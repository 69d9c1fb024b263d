"""Bringing a job that neither runs nor is at rest to where its journal says."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat

from gcr.api.answers import Recovered, RecoveredJob, UnrecoveredJob
from gcr.api.jobevents import JobRecovered
from gcr.daemon import reports
from gcr.daemon.active import Active
from gcr.daemon.jobs import RECOVERY_PATIENCE, Job, Jobs
from gcr.daemon.locked import settle_all
from gcr.daemon.places import forget_place
from gcr.engine.node import Node
from gcr.engine.recover import recover
from gcr.engine.target import Target
from gcr.errors import GcrError, WrongState, typed
from gcr.job.process import Process
from gcr.job.states import State, Strategy
from gcr.protocol.jsonbody import error_to_json
from gcr.protocol.wire import AgentPhase

log = logging.getLogger("gcr.daemon")

AT_ONCE = (0.2,) * 10  # seconds between attempts
LATER = (1.0, 2.0, *(5.0,) * 120)
FOR_GOOD = 30.0


class Recovery:
    def __init__(self, node: Node, jobs: Jobs) -> None:
        self._node = node
        self._jobs = jobs

    def of_all(self) -> Recovered:
        """Recovers each job, and gives the result of an attempt that was under way and had no error. Idempotent.

        A job that fails, or that a command has just now, keeps no other one from being tried.
        """
        settle_all()
        done: list[RecoveredJob] = []
        failed: list[UnrecoveredJob] = []
        for job in self._jobs.all():
            try:
                done.append(self._done(job))
            except Exception as error:  # gcr refuses, or the disk is full
                log.warning("job %s: not recovered: %s", job.name, error, exc_info=not isinstance(error, GcrError))
                failed.append(UnrecoveredJob(job=job.name, error=error_to_json(typed(error))))
        return Recovered(jobs=tuple(done), failed=tuple(failed))

    def _done(self, job: Job) -> RecoveredJob:
        before = job.results.recovered
        with _alone(job):
            result = job.results.recovered
            if result is None or result is before or is_uneven(job):
                return self._attempt(job)
            return result

    def of(self, job: Job) -> RecoveredJob:
        """Makes an attempt that begins now, after one that is under way. Raises WrongState beside a command."""
        with _alone(job):
            return self._attempt(job)

    def _attempt(self, job: Job) -> RecoveredJob:
        was = reports.shown(job.state)
        action = "kept running" if job.state == State.RUNNING else "left as it is"
        with self._jobs.changing(job, "recover", beside_readers=True):
            targets = [t for p in job.living if (t := self._stranded(job, p)) is not None]
            if targets:
                with Active(self._jobs, targets):
                    action = recover(job.name, targets, job.decision, self._node, self._beside(job, targets))
                if action in ("restored", "kept running", "rolled back"):
                    forget_place(job.decision)
                    job.decision = None
                elif job.decision is None or job.decision.is_without_image:
                    job.decision = self._node.journal.record(job.name)
                self._jobs.history.note(job.owner, _recovered(job, was, action))
        job.results.recovered = RecoveredJob(job=job.name, was=was, now=reports.shown(job.state), action=action)
        return job.results.recovered

    def _stranded(self, job: Job, process: Process) -> Target | None:
        if process.strategy == Strategy.DRIVER or process.peer is None or process.peer.channel.closed.is_set():
            return None
        if process.waits:  # there is nothing to bring anywhere
            return None
        if process.state == State.LOST and job.decision is not None:
            return None
        found = process.look()
        status = found.status
        at_rest = process.state in (State.SUSPENDED, State.DATA_SUSPENDED) and job.turn.settled.is_set()
        if at_rest:
            return None
        if status.phase == AgentPhase.RUNNING and not status.flags & 3 and job.decision is None:
            process.settle(State.RUNNING)  # it lost its connection before anything was released, and went on by itself
            return None
        target = self._target(job, process, status.transaction or process.suspension.transaction)
        target.books.suspended = dict(process.suspension.bytes_by_device)
        if not target.books.suspended:
            target.books.suspended = {
                process.seen.uuids[d.ordinal]: d.covered_bytes for d in found.devices if d.handles
            }
        return target

    def _beside(self, job: Job, targets: Sequence[Target]) -> list[Target]:
        """Returns the job's other processes with an agent."""
        there = {target.pid for target in targets}
        others = [each for each in job.begun if each.identity.pid not in there and each.peer is not None]
        return [self._target(job, each, targets[0].transaction) for each in others]

    def _target(self, job: Job, process: Process, transaction: int) -> Target:
        return Target(process, transaction, self._node, job.world, job.keeper)

    def begin_if_uneven(self, job: Job) -> None:
        """Finishes a rollback that was cut short, by the death of a helper, say."""
        if is_uneven(job):
            self.begin(job)

    def begin(self, job: Job) -> None:
        """Tries at once, while commands wait for it, and then now and then, until it succeeds."""
        job.turn.settled.clear()
        threading.Thread(target=self._go_on, args=(job,), name="gcr-recover", daemon=True).start()

    def _go_on(self, job: Job) -> None:
        try:
            done = self._try(job, AT_ONCE)
        finally:
            job.turn.settled.set()
        if not done:
            self._try(job, chain(LATER, repeat(FOR_GOOD)))

    def _try(self, job: Job, delays: Iterable[float]) -> bool:
        """Returns whether nothing is left to be done."""
        for delay in delays:
            time.sleep(delay)
            if job not in self._jobs.all() or (self.tried(job) and not is_uneven(job)):
                return True
        return False

    def tried(self, job: Job) -> bool:
        """Returns whether it was done without an error."""
        try:
            self.of(job)
        except GcrError as error:
            log.warning("job %s: not recovered yet: %s", job.name, error)
            return False
        except Exception:  # a disk that is full, say
            log.exception("job %s: not recovered yet", job.name)
            return False
        return True


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Waits for an attempt to recover the job that is under way. Raises WrongState where that one does not end."""
    if not job.turn.attempt.acquire(timeout=RECOVERY_PATIENCE):
        raise WrongState(f"job {job.name} is still being recovered", state=job.state, hint="gcr ps")
    try:
        yield
    finally:
        job.turn.attempt.release()


def _recovered(job: Job, was: str, action: str) -> JobRecovered:
    return JobRecovered(job=job.name, was=was, state=reports.shown(job.state), action=action)


def is_uneven(job: Job) -> bool:
    """Some process of it neither runs nor is at rest."""
    return any(p.state not in (State.RUNNING, State.SUSPENDED, State.DATA_SUSPENDED, State.LOST) for p in job.living)
