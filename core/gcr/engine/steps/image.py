"""The image that a checkpoint streams to, since the host has no room for its bytes, or that has the processes, too."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from gcr.api.barriers import Barrier
from gcr.engine.decision import decision_on
from gcr.engine.node import give_up, intend
from gcr.engine.steps.decide import kind, records
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work


class Held(Protocol):
    """An image with processes. Nothing of it is published before the decision."""

    def begin(self, targets: Sequence[Target]) -> None:
        """Begins to write what is staged; waits for nothing. Raises ImageFailed."""
        ...

    def give_up(self) -> None:
        """Ends what was begun. Raises nothing."""
        ...


class WriteBehind(Struct, frozen=True):
    """Begins with the image of what is staged, beside the decision and the release of device memory.

    Copies of processes that copied themselves are lent later, as they were staged.
    """

    work: Work
    held: Held

    def do(self, undo: Transaction) -> None:
        targets = self.work.targets
        if any(each.bytes_by_device for each in targets) and not any(each.process.copied_out for each in targets):
            undo.push("image", self.held.give_up)
            self.held.begin(targets)
            self.work.course.reach("behind")


class KeepImage(Struct, frozen=True):
    """Withdraws the image where no decision names it. The first step: a disk that hangs then holds up no other undo."""

    work: Work

    def do(self, undo: Transaction) -> None:
        undo.push("image", self.withdraw)

    def withdraw(self) -> None:
        if self.work.stream and not self.work.decision:  # an image that the record names stays
            self.work.stream.outlet.withdraw()


class WriteOut(Struct, frozen=True):
    """Makes the image durable, where bytes stream. A daemon that dies before the decision has left word of it."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        if not work.stream:
            return
        undo.push("intent", partial(give_up, work.node.journal, work.job))  # before any process runs on
        work.stream.kept_in = work.stream.outlet.kept_in
        intend(work.node.journal, decision_on(work.job, work.targets[0], kind(work), records(work), work.kept_in))
        work.stream.outlet.finish(work.targets)
        work.course.mark("durable")


class AwaitImages(Struct, frozen=True):
    """Waits until the other nodes of a cut have their images on disk, where bytes stream. Nothing is to be undone.

    Elsewhere the image is written once the job is suspended, and the command waits.
    """

    work: Work

    def do(self, undo: Transaction) -> None:
        if self.work.stream:
            self.work.course.hold(Barrier.DURABLE)
