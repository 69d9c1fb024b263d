"""Migrations without a command: it has died. The source brings back a job that it has not given away.

All other migrations are only named.

The record decides, as for `gcr migrate --recover`: once it says that the source keeps the job, the target never gets
it. So the job comes back here without a word to the target, where a later `--recover` ends what had arrived.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from gcr.api.answers import Answer, MovingJob
from gcr.api.jobevents import JobRecovered
from gcr.api.migrations import AnyStep, Forget, Move, RanOn, Run
from gcr.api.requests import MigrateRequest
from gcr.daemon.commands import migrating
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.errors import GcrError, WrongState, typed
from gcr.job.migrations import Migration, Migrations, Stage
from gcr.job.mover import Fate
from gcr.migrationerrors import MigrationUnsettled
from gcr.protocol.jsonbody import error_to_json

log = logging.getLogger("gcr.daemon")

GRACE_S = 3.0  # after the end of the command: daemons and helpers take back what they did for it
ALONE_S = 600.0  # for the daemon's own attempt
ASKED_S = 90.0  # for all attempts of one `gcr recover`, which waits for 120 s

Take = Callable[[AnyStep, float], Answer]


class Unsettled(Struct):
    """`take`: takes one step of a migration here, within so many seconds · `note`: is told of a job that came back."""

    take: Take
    note: Callable[[JobRecovered], object]
    _seen: dict[str, float] = field(default_factory=dict)  # when this daemon saw that the command is gone, by id
    _tried: set[str] = field(default_factory=set)  # each once: `gcr recover` tries again
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, node: Coordinator) -> "Unsettled":
        """Returns those of this daemon's node."""

        def take(step: AnyStep, limit: float) -> Answer:
            asked = Asked(lambda _event: None, threading.Event())
            return migrating.run(node, MigrateRequest(step=step.to_json(), timeout=limit), asked)

        def note(event: JobRecovered) -> None:
            owner = next((job.owner for job in node.jobs.all() if job.name == event.job), None)
            if owner is not None:
                node.jobs.history.note(owner, event)

        return cls(take, note)

    def look(self) -> None:
        """Begins to bring back jobs, each on a thread, once their command has been dead for a while. Raises OSError."""
        now = time.monotonic()
        for record in Migrations.here().readable():
            if record.id in self._tried or not record.may_return:
                continue
            if now - self._seen.setdefault(record.id, now) >= GRACE_S:
                self._tried.add(record.id)
                threading.Thread(target=self._alone, args=(record,), name="gcr-migration", daemon=True).start()

    def _alone(self, record: Migration) -> None:
        log.info("job %s: the command of its migration to %s has died", record.job, record.target)
        try:
            self._return(record, ALONE_S)
        except Exception as failure:
            error = typed(failure)
            log.warning("job %s: its migration is not settled: %s", record.job, error, exc_info=error is not failure)

    def of_all(self) -> tuple[MovingJob, ...]:
        """Settles the migrations that this node may settle, and returns all that it knows. Raises OSError."""
        end = time.monotonic() + ASKED_S
        return tuple(self._tried_again(each, end) for each in Migrations.here().readable())

    def _tried_again(self, record: Migration, end: float) -> MovingJob:
        error: GcrError | None = None
        outcome = "under_way" if record.fate is Fate.ALIVE else "unsettled"
        if record.may_return:
            try:
                self._return(record, max(1.0, end - time.monotonic()))
                outcome = "settled"
            except Exception as failure:
                error = typed(failure)
                log.warning("job %s: not settled: %s", record.job, error, exc_info=error is not failure)
        elif record.fate is Fate.GONE:
            error = _left(record)
        return MovingJob(
            job=record.job,
            id=record.id,
            stage=record.stage,
            source=record.source,
            target=record.target,
            outcome=outcome,
            command=record.command,
            error=error_to_json(error) if error else None,
        )

    def _return(self, record: Migration, limit: float) -> None:
        """Has the job run here, and forgets the migration; does nothing where that was done meanwhile.

        Raises WrongState where another attempt is under way for too long; what a step raises.
        """
        with self._alone_at_it(record, limit):
            found = Migrations.here().of(record.job)
            if found is None or found.id != record.id:
                return
            job, id = record.job, record.id
            self.take(Move(job=job, id=id, stage=Stage.KEPT), limit)
            ran = self.take(Run(job=job, id=id, images=found.images), limit)
            self.take(Forget(job=job, id=id, images=found.images), limit)
            state = RanOn.from_json(ran.to_json()).state
            self.note(JobRecovered(job=job, was=record.stage, state=state, action="brought back from a migration"))

    @contextmanager
    def _alone_at_it(self, record: Migration, limit: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=limit):
            raise WrongState(f"a migration is being settled, and {record.job} waits for it", hint="gcr recover")
        try:
            yield
        finally:
            self._turn.release()


def _left(record: Migration) -> MigrationUnsettled:
    """Says why a migration cannot be settled here alone."""
    where = (
        f"was given away to {record.target}"
        if record.stage is Stage.GIVEN
        else f"is arriving from {record.source}, which decides"
    )
    return MigrationUnsettled(f"job {record.job} {where}; the command of its migration has died", hint=record.command)
