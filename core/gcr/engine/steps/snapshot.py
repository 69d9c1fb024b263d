"""A copy within the device, made while the program stands. It is read later (behind.py)."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from gcr.engine.count import refuse_a_part
from gcr.engine.live import sizes_of
from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.freeze_and_drain import drain_device
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.peers.worker import WorkerPeer


class MakeRoom(Struct, frozen=True):
    """Makes room for a snapshot. The last step before the stop: other users of the device have it until then.

    `occupying` ends after everything is taken back: agents know that gcr occupies a device before it does, and until it
    has given all of it back.
    """

    work: Work
    occupying: ExitStack

    def do(self, undo: Transaction) -> None:
        limit = self.work.course.left(self.work.node.config.prepare_s)
        side_by_side(
            partial(quietly, "room for a snapshot", partial(self.make, target, worker, limit))
            for target, worker in pairs(self.work)
        )

    def make(self, target: Target, worker: WorkerPeer, limit: float) -> None:
        until_over = self.occupying.enter_context(ExitStack())
        until_over.enter_context(self.work.node.occupying(worker.device))
        if not worker.copies.make_room(target.copy_name, limit):
            until_over.close()


class DrainStanding(Struct, frozen=True):
    """Copies what has changed to the arena or a snapshot, while the programs stand."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.left(work.node.config.drain_s)
        meter = Meter(work.course, "draining", sizes_of(work.targets))
        meter.start()
        limit = work.course.left(work.node.config.drain_s)
        side_by_side(partial(drain_device, work, *pair, limit, meter) for pair in pairs(work))
        refuse_a_part({target.pid: target.books.table.bytes for target in work.targets}, work.drained)
        work.course.mark("snapshotted" if work.snapshot_bytes else "drained")


def pairs(work: Work) -> Iterator[tuple[Target, WorkerPeer]]:
    """Yields each process with each worker that copies it."""
    return ((target, worker) for target in work.targets for worker in target.workers())
