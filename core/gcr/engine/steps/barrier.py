"""Barriers of a cut over several nodes, between two steps of a transaction."""

from collections.abc import Sequence

from msgspec import Struct

from gcr.api.barriers import Barrier
from gcr.engine.led import Led
from gcr.engine.node import Course
from gcr.engine.plan import Step
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work


class Hold(Struct, frozen=True):
    """Waits until the other nodes have come to the barrier; without a cut it does nothing. Nothing is to be undone."""

    course: Course
    barrier: Barrier

    def do(self, undo: Transaction) -> None:
        self.course.hold(self.barrier)


class HoldStill(Struct, frozen=True):
    """Waits at the standstill for the other nodes; without a cut it does nothing. Nothing is to be undone.

    again: the steps from the standstill up to here, which follow once more where calls were admitted meanwhile
    """

    work: Work
    again: Sequence[Step]

    def do(self, undo: Transaction) -> None:
        course, limit = self.work.course, self.work.node.config.quiesce_s
        led = Led.of(self.work, limit)
        while course.hold(Barrier.STILL, led.obey) is not Barrier.STILL:
            led.closing.quiesce()
            led.is_closed = False
            for step in self.again:
                step.do(undo)
