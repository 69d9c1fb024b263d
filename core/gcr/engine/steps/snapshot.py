"""A copy within the device, made while the program stands, and read while it runs again (gcr.worker.snapshot)."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.engine.count import refuse_a_part
from gcr.engine.live import sizes_of
from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.freeze_and_drain import drain_device
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import PeerGone
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
            for target, worker in _pairs(self.work)
        )

    def make(self, target: Target, worker: WorkerPeer, limit: float) -> None:
        until_over = self.occupying.enter_context(ExitStack())
        until_over.enter_context(self.work.node.occupying(worker.device))
        if not worker.copies.make_room(target.copy_name, limit):
            until_over.close()


class DrainStanding(Struct, frozen=True):
    """Copies what has changed to the arena or a snapshot, while the programs stand. The copy goes with the exports."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.left(work.node.config.drain_s)
        meter = Meter(work.course, "draining", sizes_of(work.targets))
        meter.start()
        limit = work.course.left(work.node.config.drain_s)
        side_by_side(partial(drain_device, work, *pair, limit, meter) for pair in _pairs(work))
        refuse_a_part({target.pid: target.books.table.bytes for target in work.targets}, work.drained)
        work.course.mark("snapshotted" if work.snapshot_bytes else "drained")


class ReadSnapshots(Struct, frozen=True):
    """Copies the snapshots to the host while the programs run; memory that these free is free at once."""

    work: Work
    occupying: ExitStack

    def do(self, undo: Transaction) -> None:
        work = self.work
        if not work.snapshot_bytes:
            return
        side_by_side(target.forget_memory for target in work.targets)
        work.course.reach("reading")
        meter = Meter(work.course, "reading", {key: one.snapshot for key, one in work.drained.items()})
        meter.start()
        limit = work.course.left(work.node.config.drain_s)
        side_by_side(partial(self._read, target, worker, limit, meter) for target, worker in _pairs(work))
        work.course.mark("drained")
        self.occupying.close()

    def _read(self, target: Target, worker: WorkerPeer, limit: float, meter: Meter) -> None:
        copy = target.pid, worker.device
        done = worker.copies.copy_on(target.copy_name, limit, partial(meter.at, copy))
        drained = self.work.drained[copy]
        if done.bytes != drained.snapshot:
            raise PeerGone(f"the worker of {worker.device} had not all of what it copied on the device")
        self.work.drained[copy] = replace(drained, seconds=drained.seconds + done.seconds)


def _pairs(work: Work) -> Iterator[tuple[Target, WorkerPeer]]:
    return ((target, worker) for target in work.targets for worker in target.workers())
