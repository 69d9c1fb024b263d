"""The events of a checkpoint or a restore; each is a line in the daemon's log, too."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct

from gcr.api import jobevents
from gcr.api.jobevents import TEXT, CheckpointBegun, CheckpointFailed, RestoreBegun, RestoreFailed
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.daemon import ledger
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.transaction import saying_state
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.history import History
from gcr.daemon.jobs import Job
from gcr.engine.node import Course
from gcr.errors import GcrError, typed

Report = TypeVar("Report", CheckpointReport, RestoreReport)

_BEGUN: Mapping[str, type[CheckpointBegun | RestoreBegun]] = {"checkpoint": CheckpointBegun, "restore": RestoreBegun}
_FAILED: Mapping[str, type[CheckpointFailed | RestoreFailed]] = {
    "checkpoint": CheckpointFailed,
    "restore": RestoreFailed,
}


class Story(Struct, frozen=True):
    """One command on one job. `by`: its caller; `image`: the one that was asked for."""

    history: History
    job: Job
    course: Course
    by: str
    image: str | None = None

    def begun(self) -> None:
        """Tells that the command has its turn at the job."""
        self.history.note(self.job.owner, _BEGUN[self.course.kind](**self._facts(), image=self.image))

    def done(self, report: Report) -> Report:
        """Tells what the command did. Returns the report."""
        facts = {**self._facts(), **_of_report(report), "took_s": self._took_s}
        if isinstance(report, CheckpointReport):
            self.history.note(self.job.owner, jobevents.CheckpointDone(**facts, **_of_checkpoint(report)))
        else:
            self.history.note(self.job.owner, jobevents.RestoreDone(**facts, **_of_restore(report)))
        return report

    def failed(self, error: GcrError) -> None:
        """Tells why the command did not do it."""
        event = _FAILED[self.course.kind](
            **self._facts(),
            code=error.code,
            exit=error.exit,
            message=error.message[:TEXT],
            state=error.state,
            took_s=self._took_s,
        )
        self.history.note(self.job.owner, event)
        ledger.tell(error)

    @property
    def _took_s(self) -> float:
        return time.monotonic() - self.course.began

    def _facts(self) -> dict[str, Any]:
        """Returns the facts of all events. The transaction is text, since JSON's readers round such large numbers."""
        return {"job": self.job.name, "transaction": f"{self.course.transaction:x}", "by": self.by}


def _of_report(report: CheckpointReport | RestoreReport) -> dict[str, Any]:
    return {
        "state": report.state,
        "simulated": report.simulated,
        "bytes": report.bytes,
        "phases_s": dict(report.phases_s),
        "link_bytes_per_s": report.link_bytes_per_s,
    }


def _of_checkpoint(report: CheckpointReport) -> dict[str, Any]:
    return {
        "strategy": report.strategy,
        "stop_s": report.stop_s,
        "vram_free_s": report.vram_free_s,
        "copy_s": report.drain_s,
        "bytes_per_s": report.drain_bytes_per_s,
        "image": report.image,
    }


def _of_restore(report: RestoreReport) -> dict[str, Any]:
    return {
        "copy_s": report.refill_s,
        "bytes_per_s": report.refill_bytes_per_s,
        "cold": report.cold,
        "moved": dict(report.moved),
    }


@contextmanager
def telling(node: Coordinator, job: Job, course: Course, asked: Asked, image: str | None) -> Iterator[Story]:
    """Yields what tells of a command. An error says in which state it leaves the job, and is an event."""
    story = Story(node.jobs.history, job, course, asked.who, image)
    try:
        with saying_state(job):
            yield story
    except Exception as error:
        story.failed(typed(error))
        raise
