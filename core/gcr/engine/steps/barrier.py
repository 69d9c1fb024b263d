"""Barriers of a cut over several nodes, between two steps of a transaction."""

from msgspec import Struct

from gcr.api.barriers import Barrier
from gcr.engine.node import Course
from gcr.engine.transaction import Transaction


class Hold(Struct, frozen=True):
    """Waits until the other nodes have come to the barrier; without a cut it does nothing. Nothing is to be undone."""

    course: Course
    barrier: Barrier

    def do(self, undo: Transaction) -> None:
        self.course.hold(self.barrier)
