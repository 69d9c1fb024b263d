"""A checkpoint without room in the arena: on each device its bytes pass through a ring of slots to the job's image.

    reserved   while the program runs: a few slots of the arena for each device, or nothing is begun
    opened     its memory is handed over: the places of its bytes are sealed, and told to the image's helper
    drained    window by window, device -> slot -> image; a slot is filled again once its bytes are written
    finished   the image is durable; only now is the decision written, and any device memory let go of

Up to the decision all of the memory is there. A failure is taken back as in any checkpoint; the image goes, too.
The disk is the pace, so only the caller's own deadline counts: `drain_s` is that of a single window.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Protocol

from msgspec import Struct, field

from gcr import units
from gcr.engine.node import Course
from gcr.engine.progress import Copy
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import NoRoom, PeerGone, RolledBack
from gcr.hashing import CHUNK_BYTES
from gcr.image.chunks.windows import ImagedLine
from gcr.job.decisions import KeptImage
from gcr.job.states import State
from gcr.memory.layout import SealedTable
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.operation import Done, Progress
from gcr.protocol.operations.worker import Drained, ProcessFacts
from gcr.protocol.seqpacket import close_all

SLOTS = (8, 4, 2)  # of each device, as many as all can have: one is filled while others are written

Window = tuple[int, int, int]  # slot, offset on the line, size


class Outlet(Protocol):
    """The job's image. Every call raises ImageFailed, Interrupted, DeadlinePassed."""

    def prepare(self, targets: Sequence[Target]) -> None:
        """Finds out what can be found out before anything stops."""
        ...

    def open(self, pid: int, fds: Sequence[int], slot_bytes: int) -> None:
        """Announces a device's bytes, with the sealed table and the ring's memory, which stay the caller's."""
        ...

    def take(self, pid: int, device: str, window: Window) -> None:
        """Takes the bytes of a slot. When this returns the slot is free."""
        ...

    @property
    def kept_in(self) -> KeptImage:
        """The image that is there once `finish` has returned."""
        ...

    def finish(self, targets: Sequence[Target]) -> None:
        """Makes the image durable, once all of it has been taken."""
        ...

    def withdraw(self) -> None:
        """Undoes `finish`, also one that failed: no such image is left. Raises nothing."""
        ...


class Stream(Struct):
    """The way of a job's bytes. By pid and device, `rings`: slots and their memory; `lines`: a line and its handles."""

    outlet: Outlet
    course: Course
    slot_bytes: int
    drain_s: float
    rings: dict[Copy, tuple[int, list[int]]] = field(default_factory=dict)
    lines: dict[Copy, tuple[ImagedLine, int]] = field(default_factory=dict)
    kept_in: KeptImage | None = None  # the image that alone has the bytes, from just before the decision
    _stopped: Event = field(default_factory=Event)

    @property
    def ring_bytes(self) -> int:
        """The bytes of the rings on all devices."""
        return sum(slots for slots, _ in self.rings.values()) * self.slot_bytes

    def reserve(self, targets: Sequence[Target]) -> None:
        """Makes rings for all devices, in place of the room that was reserved. Raises NoRoom."""
        self.give_back(targets)
        for most in SLOTS:
            try:
                self._reserve_all(targets, most)
                break
            except NoRoom as short:
                if most == SLOTS[-1]:
                    ring = f"a ring of {most} slots of {units.size(self.slot_bytes)} on each device"
                    raise NoRoom(f"{short.message}, even of {ring}", missing=short.missing, hint=short.hint) from short

    def _reserve_all(self, targets: Sequence[Target], most: int) -> None:
        """Makes rings of `most` slots at most for all devices, or none."""
        try:
            for target in targets:
                for worker in target.workers():
                    self._reserve_one(target, worker, most)
        except BaseException:
            self.give_back(targets)
            raise

    def _reserve_one(self, target: Target, worker: WorkerPeer, most: int) -> None:
        made = worker.rings.make(target.copy_name, target.owner, self.slot_bytes, most, SLOTS[-1])
        self.rings[target.pid, worker.device] = made

    def give_back(self, targets: Sequence[Target]) -> None:
        for target in targets:
            for worker in target.workers():
                quietly("give the ring back", partial(worker.copies.forget_copy, target.copy_name))
        self.close()

    def open(self, target: Target, about: ProcessFacts) -> None:
        """Opens the way of a process that has handed its memory over."""
        for worker in target.workers():
            if (target.pid, worker.device) not in self.rings:  # its first memory there came after PREPARE
                self._reserve_one(target, worker, SLOTS[-1])
            worker.rings.lay_out_held(target.copy_name)
            sealed = worker.copies.seal(target.copy_name, about)
            try:
                table = SealedTable.from_fd(sealed[0])
                line = ImagedLine.of([(handle, 0) for handle in table.handles], CHUNK_BYTES)
                self.lines[target.pid, worker.device] = line, len(table.handles)
                if table.handles:
                    fds = [sealed[0], *self.rings[target.pid, worker.device][1]]
                    self.outlet.open(target.pid, fds, self.slot_bytes)
            finally:
                close_all(sealed)

    def drain(self, target: Target, worker: WorkerPeer, tell: Progress) -> Drained:
        """Drains as WorkerCopies.drain does. Every byte is taken when it returns; on failure no slot is in use."""
        began, key, done = time.monotonic(), (target.pid, worker.device), 0
        slots, (line, handles) = self.rings[key][0], self.lines[key]
        writing: list[Future[None]] = []
        with ThreadPoolExecutor(slots, "gcr-stream") as pool:
            for number, (offset, size) in enumerate(line.windows(self.slot_bytes)):
                if number >= slots:
                    writing[number - slots].result()  # the slot is free again
                self._refuse_vain(target)
                slot = number % slots
                worker.rings.fill(target.copy_name, slot, (offset, size), self.course.left(self.drain_s))
                self.course.reach(f"filled_{number}")
                writing.append(pool.submit(self.outlet.take, target.pid, worker.device, (slot, offset, size)))
                done += size
                tell(Done(done))
            for each in writing:
                each.result()
        return Drained(done, time.monotonic() - began, copied=done, handles=handles, snapshot=0)

    def _refuse_vain(self, target: Target) -> None:
        """Raises where the copy would be taken back anyway, since it may take long."""
        if self._stopped.is_set():
            raise RolledBack("something beside it has failed")
        if target.process.state == State.EXITED:
            raise PeerGone(f"process {target.pid} has ended")

    def or_stop(self, step: Callable[[], object]) -> None:
        """Runs a step beside others. Where it fails the others need not go on."""
        try:
            step()
        except BaseException:
            self._stopped.set()
            raise

    def close(self) -> None:
        """Closes the daemon's descriptors; the image's helper has its own."""
        for _, fds in self.rings.values():
            close_all(fds)
        self.rings.clear()


def without_room(short: NoRoom, imaged: bool, live: bool, copies: bool, stays: bool = False) -> NoRoom:
    """Returns why the bytes do not go straight to an image, and a hint. `stays`: the job was to run on."""
    if copies:
        why, hint = "; a process that copies by itself needs room for all of it", short.hint
    elif not imaged:
        more = short.hint or "docs/troubleshooting.md#host-memory"
        why, hint = "", f"with --image NAME it goes straight to disk; {more}"
    else:
        why = "; only a checkpoint that stops the job for all of it can go straight to disk"
        hint = "the same without --leave-running" if stays else "the same without --live" if live else short.hint
    return NoRoom(short.message + why, missing=short.missing, hint=hint)
