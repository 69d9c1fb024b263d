"""Data to the device, control state to the process, physical memory to its addresses: all at once."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from gcr.engine.copyout import AgentCopy, StagedCopy, refuse_without_room
from gcr.engine.departed import depart
from gcr.engine.live import sizes_of
from gcr.engine.progress import Meter
from gcr.engine.restore import Restore
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.unreturned import lose, noting_refusals
from gcr.errors import DriverGone, Lost
from gcr.job.moves import moved
from gcr.job.states import State
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.operation import Done
from gcr.protocol.operations.worker import Moved
from gcr.protocol.wire import FrameType

CONTEXT_S = 0.5  # an H200's driver takes about so long for a context beside full queues, and 0.25 s beside none


class BringBack(Struct, frozen=True):
    """Refills, thaws and gives memory; the undo discards the memory and freezes again."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        restore.course.left(restore.node.config.drain_s)
        for target in restore.targets:
            if not restore.data_only:
                undo.push("thaw", partial(self._take_back, target, self.freeze_again))
            undo.push("map", partial(self._take_back, target, discard))
        meter = self._meter()
        steps: list[Callable[[], None]] = []
        for target in restore.targets:
            steps += [*self._refills(target, meter), partial(self._reenter, target, meter)]
        for owner in restore.orphaned:
            steps += self._refills(owner, meter)
        with self._pacing():
            side_by_side(steps)
        restore.course.mark("back")

    def _refills(self, target: Target, meter: Meter) -> list[Callable[[], None]]:
        return [partial(self._refill, target, each, meter) for each in self._refilling(target)]

    def _refilling(self, target: Target) -> list[WorkerPeer]:
        """Returns the workers that copy to the device; none does where all of the memory was resident."""
        workers = target.workers() if target.copy is None and not self.restore.image else ()
        sizes, there = target.bytes_by_device, self.restore.resident
        return [each for each in workers if there.get((target.pid, each.device), 0) < sizes[each.device]]

    @contextmanager
    def _pacing(self) -> Iterator[None]:
        """Has the workers let the driver's copies in between theirs, until the driver is done with each process."""
        thawed = [] if self.restore.data_only else self.restore.targets
        for target in thawed:
            self._say_driver_at_work(target, CONTEXT_S * len(target.ballast_by_device))
        try:
            yield
        finally:  # a step may have failed before the driver was asked
            for target in thawed:
                self._say_driver_at_work(target, 0.0)

    def _say_driver_at_work(self, target: Target, seconds: float) -> None:
        for worker in self._refilling(target):
            quietly("pace", partial(worker.copies.driver_at_work, target.hold, seconds))

    def _meter(self) -> Meter:
        """Returns what tells of the bytes that no image has brought yet."""
        restore = self.restore
        lacking = {copy: n - restore.resident.get(copy, 0) for copy, n in sizes_of(restore.owners).items()}
        sizes = {copy: n for copy, n in lacking.items() if n and copy not in restore.refilled}
        meter = Meter(self.restore.course, "refilling", sizes)
        if sizes:
            meter.start()
        return meter

    def _refill(self, target: Target, worker: WorkerPeer, meter: Meter) -> None:
        copy, restore = (target.pid, worker.device), self.restore
        limit = restore.course.left(restore.node.config.drain_s)
        done = worker.copies.refill(target.copy_name, limit, partial(meter.at, copy))
        restore.refilled[copy] = done
        meter.at(copy, Done(done.bytes))
        restore.course.mark("refilled")

    def _reenter(self, target: Target, meter: Meter) -> None:
        restore = self.restore
        if not restore.data_only:
            with self._room_for_driver(target):
                restore.course.reach("yielded")
                self._thaw(target)
        if target.copy is None:
            target.imports.give_from_workers(keep=True)
        else:
            self._copy_in(target, target.copy, meter)

    @contextmanager
    def _room_for_driver(self, target: Target) -> Iterator[None]:
        """Gives the driver the room that the workers held. Where they hold none the devices are asked once more.

        Raises NoRoom.
        """
        turns, workers = self.restore.node.turns, target.workers() if target.copy is None else []
        needs, held = target.ballast_by_device, {worker.device for worker in workers}
        unheld = {device: size for device, size in needs.items() if size and device not in held}
        turn = turns.alone if unheld else turns.taking
        with turn({*needs, *held}, self._control_s()):
            if unheld:
                refuse_without_room(unheld, target.free_bytes(unheld))
            for worker in workers:
                worker.handles.drop_ballast(target.hold)
            yield

    def _thaw(self, target: Target) -> None:
        began, marks = time.monotonic(), self.restore.course.marks
        with noting_refusals(target, alone=len(self.restore.targets) == 1):
            target.control_state.thaw(self._control_s())
        self._say_driver_at_work(target, 0.0)
        marks["control_s"] = max(marks.get("control_s", 0.0), time.monotonic() - began)

    def _control_s(self) -> float:
        return self.restore.course.left(self.restore.node.config.control_s)

    def _copy_in(self, target: Target, staged: StagedCopy, meter: Meter) -> None:
        """Comes after the control state: a driver that finds too little room for itself never gives a process back."""
        course, limit = self.restore.course, self.restore.node.config.drain_s
        with self.restore.node.turns.making(target.bytes_by_device, self._control_s()):
            target.imports.create(staged.sizes())
        course.mark("created")
        copy = AgentCopy(
            target.process.agent,
            target.transaction,
            staged,
            tell=lambda left, done: meter.at((target.pid, target.moves.get(left, left)), done),
            check=partial(course.left, limit),
        )
        seconds = copy.run(FrameType.COPY_IN, course.left(limit))
        for device, size in moved(copy.moved, target.moves).items():
            self.restore.refilled[target.pid, device] = Moved(size, seconds)
        course.mark("refilled")

    def _take_back(self, target: Target, step: Callable[[Target], object]) -> None:
        if target.process.departed:
            return
        try:
            step(target)
        except DriverGone:
            depart(target)
        except BaseException:
            self.restore.adrift.add(target.pid)
            raise

    def freeze_again(self, target: Target) -> None:
        """Raises where memory that came back cannot be discarded: a driver never gives such a process back."""
        discard(target)
        if target.process.state == State.LOST:
            return
        try:
            target.control_state.freeze_again(self.restore.node.config.control_s)
        except Lost:
            lose(target)


def discard(target: Target) -> None:
    """Takes the memory back from a process.

    Asks its agent only if the control state is back: a frozen agent has mapped nothing and must not be asked to unmap.
    """
    if not target.process.agent.frozen():
        target.process.agent.discard(target.transaction)
    target.imports.given_back.clear()
    quietly("drop", lambda: target.keeper().drop(target.pid))
