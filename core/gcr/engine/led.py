"""The standstill of one node's ranks in a cut over several nodes.

A kernel may wait for a call that the gate of another node holds. Calls that are needed in any case are admitted here
(Closing.come_alone). Where these do not bring all ranks to rest, the cut's coordinator decides for all nodes, and this
node obeys.
"""

import time
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.barriers import Barrier
from gcr.engine.closing import Closing
from gcr.engine.work import Work
from gcr.errors import UsageError
from gcr.standstill.decision import Admit
from gcr.standstill.messages import Lead, Report

ALONE_S = 0.05  # for ranks to come to rest by themselves, before all nodes are asked to help


class Led(Struct):
    """Obeys the coordinator. `passes_calls`: False where a setting lets no call pass the gates (`pulse_ms` 0)."""

    closing: Closing
    passes_calls: bool = True
    is_closed: bool = False

    @classmethod
    def of(cls, work: Work, limit: float) -> "Led":
        """Returns that of a job's processes. `limit`: seconds for each part of the standstill."""
        closing = Closing(work.job, work.targets, partial(work.course.left, limit))
        return cls(closing, work.node.config.pulse_ms > 0)

    def obey(self, lead: Lead) -> tuple[Report, ...]:
        """Does what is ordered, and returns what the ranks report; nothing after an admission.

        `changed_at` is on a clock that is at 0 now. Raises UsageError for a rank that is not of this job, before
        anything is done; else as Closing.run.
        """
        pids = {target.pid for target in self.closing.targets}
        if strangers := {each.rank for each in lead.admissions} - pids:
            raise UsageError(f"process {min(strangers)} takes no part in the cut")
        if lead.closed != self.is_closed:
            (self.closing.close if lead.closed else self.closing.open)()
            self.is_closed = lead.closed
        if not lead.closed:
            return tuple(_open(pid, captures) for pid, captures in self.closing.captures().items())
        if lead.admissions:
            self.closing.admit(Admit(lead.admissions, dict(lead.furthest)))
            return ()
        return tuple(map(self._told, self.closing.look(0)))

    def _told(self, report: Report) -> Report:
        parked = report.parked if self.passes_calls else ()
        return replace(report, parked=parked, changed_at=report.changed_at - self.closing.now())


def _open(pid: int, captures: int) -> Report:
    return Report(pid, 0, busy=False, in_flight=0, captures=captures, changed_at=0.0)


def come_to_rest(work: Work, limit: float) -> None:
    """Returns with every process quiesced, led by the coordinator if need be.

    limit: seconds for what this node does by itself. Raises as Closing.run, with all gates open; CutGivenUp.
    """
    led = Led.of(work, limit)
    closing, part = led.closing, work.course.part
    began = closing.now()
    with closing.or_open_all():
        if part:
            part.stopped_at = time.monotonic()
        led.is_closed = True
        if not closing.come_alone(min(limit, ALONE_S)):
            work.course.hold(Barrier.APART, led.obey)
        closing.quiesce()
    closing.tell(began)
