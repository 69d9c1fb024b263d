"""FREEZE beside DRAIN: the driver saves the control state while the workers copy the data to the host."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from gcr.engine.progress import Meter
from gcr.engine.sealing import about
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import PeerGone
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.operation import Done


class Beside(Protocol):
    """Something that takes room on the devices while the data leaves, and that nothing waits for."""

    def begin(self) -> None:
        """Raises nothing."""
        ...

    def stop(self) -> None:
        """Begins nothing more: the room that comes free next is another's. Raises nothing."""
        ...

    def give_up(self) -> None:
        """Gives the room back, before the processes take theirs again. Raises nothing."""
        ...


class FreezeAndDrain(Struct, frozen=True):
    """Runs both for all processes at once; without the freeze where the control state stays.

    The driver locks every process before it saves any. So a lock that fails costs the others an unlock, and no restore.
    """

    work: Work
    meter: Meter
    beside: Beside | None = None

    def do(self, undo: Transaction) -> None:
        work, meter = self.work, self.meter
        meter.start()
        if work.stream:
            for target in work.targets:
                work.stream.open(target, about(target))
        steps: list[Callable[[], None]] = []
        for target in work.targets:
            undo.push("drain", partial(target.process.take_back, "drain"))
        if not work.options.data_only:
            for target in work.targets:
                undo.push("freeze", partial(thaw, work, target))
            steps.append(partial(freeze, work))
        steps += [partial(drain, work, target, meter) for target in work.targets]
        if work.stream:
            steps = [partial(work.stream.or_stop, step) for step in steps]
        elif self.beside:
            undo.push("head start", self.beside.give_up)  # the last: a driver that takes a process back needs room
            self.beside.begin()
        side_by_side(steps)
        if self.beside:
            self.beside.stop()
        work.course.left(work.node.config.stage_s)


def freeze(work: Work) -> None:
    """Saves the control state of all processes, once each of them is locked."""
    side_by_side(partial(lock, work, target) for target in work.targets)
    side_by_side(partial(save, work, target) for target in work.targets)


def lock(work: Work, target: Target) -> None:
    if not target.keeps_context:
        work.count.look_without_data(target)
    target.control_state.lock(work.course.left(work.node.config.control_s))
    work.course.mark("locked")


def save(work: Work, target: Target) -> None:
    target.control_state.save(work.course.left(work.node.config.control_s))
    if not target.process.copied_out:  # else there may be no context to hold it with
        work.ballasts.keep(target)
    target.process.advance("freeze")
    work.course.mark("frozen")


def thaw(work: Work, target: Target) -> None:
    """Undoes `freeze` for one process, whether it is locked, saved, or neither."""
    with work.ballasts.given_up(target):
        if target.process.ended:
            return
        target.control_state.thaw(work.node.config.control_s, undo=True)
    target.process.take_back("freeze")


def drain(work: Work, target: Target, meter: Meter) -> None:
    limit = work.course.left(work.node.config.drain_s)
    workers = [] if target.process.copied_out else target.workers()
    side_by_side(partial(drain_device, work, target, worker, limit, meter) for worker in workers)
    target.process.advance("drain")
    work.course.mark("drained")


def drain_device(work: Work, target: Target, worker: WorkerPeer, limit: float, meter: Meter) -> None:
    """Copies what a process has on one device. Raises PeerGone unless it is all that the books say."""
    copy = target.pid, worker.device
    if work.stream:
        done = work.stream.drain(target, worker, partial(meter.at, copy))
    else:
        tell, wishes = partial(meter.at, copy), work.options
        done = worker.copies.drain(target.copy_name, target.owner, limit, tell, wishes.paranoid, wishes.ends)
    expected = target.books.table.of_device(worker.device)
    if done.handles != len(expected) or done.bytes != sum(each.spec.size for each in expected):
        raise PeerGone(f"the worker of {worker.device} copied {done.bytes} bytes, not all there are")
    work.drained[copy] = done
    meter.at(copy, Done(done.bytes))
