"""The way to the device of host memory that is not pinned: through a few slots that are.

A driver pins host memory much slower than the link carries it. So memory that a worker takes over is not pinned for its
refill. Each thread has two slots: it reads a piece of a segment's file into one while the device copies the other.
Reading the file needs no page tables, as a mapping of the segment would.

Slots are small, so that they stay in the processor's caches, and not too small, since all threads share Python's lock:
34.5 GB are 8,200 pieces. In one run beside an H200 twelve threads took 1.64 s through slots of 2 MiB, 1.20 s through
4 MiB and 1.55 s through 8 MiB; beside another one 0.74 s through 4 MiB.

    take      a refill's turn with the slots, which the arena has for the next refill as well
    Bounced   the threads at work: a transfer like any other
    end       by the last thread, once no copy from a slot is in flight
"""

import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_char
from itertools import accumulate, count, cycle
from threading import Event, Lock, Semaphore, Thread
from typing import Self

from msgspec import Struct, field

from gcr.drain import DataDrain, Lane, Span, Transfer
from gcr.errors import DeadlinePassed, NoRoom, RolledBack
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment
from gcr.worker.guarded import has_lanes

log = logging.getLogger("gcr.worker")

SLOT_BYTES = 4 << 20
SLOTS_EACH = 2  # of a thread
PACED_BYTES = 8 << 20  # in flight of all threads, while the driver's copies are let in between
OWNER = "slots"  # in the arena; no process has this name
LOOK_S = 0.05
LONGEST_COPY_S = 60.0  # from one slot; a copy over the link always ends

Piece = tuple[int, int, int, int]  # the file, the offset there, the address on the device, bytes
OpenLane = Callable[[int], Lane]


# ---- the slots ------------------------------------------------------------------------------------------------------


class Slots(Struct):
    """The slots of one device, which one refill has at a time. `threads`: of a refill."""

    arena: Arena
    threads: int
    _turn: Lock = field(default_factory=Lock)

    def take(self, nbytes: int, meanwhile: Callable[[], object]) -> "Turn | None":
        """Waits for the slots, of which few bytes get few. Returns None where the host has no memory for one thread's.

        Calls `meanwhile` while it waits; an error of that ends the wait.
        """
        while not self._turn.acquire(timeout=LOOK_S):
            meanwhile()
        found = None
        try:
            found = self._made(nbytes)
        finally:
            if found is None:
                self._turn.release()
        return Turn(self.arena, found, self._turn) if found else None

    def _made(self, nbytes: int) -> Segments | None:
        threads = min(self.threads, max(1, -(-nbytes // (SLOTS_EACH * SLOT_BYTES))))
        while threads:
            try:
                return self.arena.take_slots(OWNER, threads * SLOTS_EACH, SLOT_BYTES)
            except NoRoom as short:
                log.info("no slots for %d threads: %s", threads, short)
            threads //= 2
        return None


class Turn(Struct, frozen=True):
    """The use of the slots by one refill."""

    arena: Arena
    segments: Segments
    lock: Lock

    def lanes(self) -> list[Sequence[Segment]]:
        """Returns the slots of each thread."""
        parts = self.segments.parts
        return [parts[at : at + SLOTS_EACH] for at in range(0, len(parts), SLOTS_EACH)]

    def end(self, landed: bool = True) -> None:
        """Ends the turn. landed: no copy from a slot is in flight; else these slots never serve again."""
        try:
            if landed:
                self.arena.give_back(self.segments)
        finally:
            self.lock.release()


# ---- the copy -------------------------------------------------------------------------------------------------------


class Queue(Struct):
    """Pieces for several threads, by their numbers: each is cut when it is taken.

    Gives none any more once one has failed, or the copy is cancelled or given up.
    """

    copies: Sequence[tuple[int, Span]]  # a file, and what to copy from there: `host` is the offset
    given_up: Callable[[], bool]
    firsts: Sequence[int]  # the number of each copy's first piece
    pieces: int
    step: int  # bytes of a piece, the last of a copy may have fewer
    cancelled: bool = False
    error: BaseException | None = None
    _numbers: "count[int]" = field(default_factory=count)  # gives each number once, by Python's lock

    @classmethod
    def of(cls, plan: Iterable[tuple[Segment, Sequence[Span]]], given_up: Callable[[], bool]) -> Self:
        """Returns pieces that fit into a slot. The spans' `host` counts from their segment's first byte."""
        copies = [(segment.fd, span) for segment, spans in plan for span in spans]
        firsts = [*accumulate((-(-span.size // SLOT_BYTES) for _, span in copies), initial=0)]
        return cls(copies, given_up, firsts[:-1], firsts[-1], SLOT_BYTES)

    @property
    def size(self) -> int:
        return sum(span.size for _, span in self.copies)

    def next(self) -> Piece | None:
        if self.error or self.cancelled or self.given_up():
            return None
        number = next(self._numbers)
        if number >= self.pieces:
            return None
        at = bisect_right(self.firsts, number) - 1
        fd, span = self.copies[at]
        done = (number - self.firsts[at]) * self.step
        return fd, span.host + done, span.device + done, min(self.step, span.size - done)


class Carrier(Struct):
    """One thread's slots. `flying`: bytes in flight from each. `moved`: bytes that are on the device."""

    lane: Lane
    slots: Sequence[Segment]
    views: Sequence[memoryview]
    flying: list[int]
    moved: int = 0
    reading: float = 0.0

    @classmethod
    def of(cls, lane: Lane, slots: Sequence[Segment]) -> Self:
        return cls(lane, slots, [_view(each) for each in slots], [0] * len(slots))

    def copy(self, queue: Queue, paced: Callable[[], bool], few: Semaphore) -> None:
        """Copies pieces while there are any. `few`: lets some threads at a time have a copy in flight, where paced."""
        for slot in cycle(range(len(self.slots))):
            self._land(slot)
            piece = queue.next()
            if piece is None:
                break
            fd, offset, device, size = piece
            began = time.monotonic()
            _fill(self.views[slot][:size], fd, offset)
            self.reading += time.monotonic() - began
            if paced():
                with few:
                    self._write(slot, device, size)
                    self._land(slot)
            else:
                self._write(slot, device, size)
        for slot in range(len(self.slots)):
            self._land(slot)

    def _write(self, slot: int, device: int, size: int) -> None:
        self.flying[slot] = size
        self.lane.write(slot, device, self.slots[slot].address, size)

    def _land(self, slot: int) -> None:
        if size := self.flying[slot]:
            self.lane.land(slot)
            self.moved += size
            self.flying[slot] = 0


class Bounced:
    """A copy to the device through slots, which begins at once and ends the turn. Implements gcr.drain.Transfer."""

    def __init__(self, queue: Queue, turn: Turn, open_lane: OpenLane, paced: Callable[[], bool]) -> None:
        """open_lane: called by each thread with the number of its slots. paced: let the driver's copies in between.

        Raises RolledBack where no thread is to be had; the turn is the caller's then.
        """
        self._queue, self._turn, self._open_lane, self._paced = queue, turn, open_lane, paced
        self._began, self._seconds = time.monotonic(), 0.0
        self._carriers, self._landed = list[Carrier](), True
        self._few = Semaphore(max(1, PACED_BYTES // SLOT_BYTES))
        self._lock, self._over = Lock(), Event()
        lanes = turn.lanes()
        self._at_work = len(lanes)
        for number, slots in enumerate(lanes):
            try:
                Thread(target=self._run, args=(slots,), name="gcr-bounce", daemon=True).start()
            except RuntimeError as error:
                if number == 0:
                    raise RolledBack(f"no thread for a refill: {error}") from error
                self._ended(len(lanes) - number)  # the others do their share
                return

    def done(self) -> int:
        """Bytes that are on the device."""
        return sum(each.moved for each in self._carriers)

    def wait(self, timeout: float) -> float:
        """Waits for the end of all threads; seconds that they took. Raises DeadlinePassed, and `check` all else."""
        if not self._over.wait(max(0.0, timeout)):
            raise DeadlinePassed(f"a copy moved {self.done()} bytes and is not at its end")
        return self._seconds

    def cancel(self) -> None:
        """Lets no thread begin another piece."""
        self._queue.cancelled = True

    def check(self) -> None:
        """Raises the error that has ended the copy before its last byte, RolledBack where it was given up."""
        if self._queue.error:
            raise self._queue.error
        if self.done() < self._queue.size:
            raise RolledBack("what was being copied was given up meanwhile")

    def _run(self, slots: Sequence[Segment]) -> None:
        lane = None
        try:
            lane = self._open_lane(len(slots))
            self._carriers.append(carrier := Carrier.of(lane, slots))
            carrier.copy(self._queue, self._paced, self._few)
        except BaseException as error:
            self._queue.error = self._queue.error or error  # raised by `check`
        if lane:
            self._close(lane)
        self._ended(1)

    def _close(self, lane: Lane) -> None:
        """Waits for the copies of a thread that has failed: its slots must not be written again before."""
        try:
            lane.close()
        except Exception:
            log.exception("a copy from a slot may be in flight still")
            self._landed = False

    def _ended(self, threads: int) -> None:
        with self._lock:
            self._at_work -= threads
            last = self._at_work == 0
        if last:
            self._seconds = time.monotonic() - self._began
            reading = max((each.reading for each in self._carriers), default=0.0)
            text = "%d bytes through %d slots in %.3f s; a thread read for at most %.3f s"
            log.info(text, self.done(), len(self._turn.segments.parts), self._seconds, reading)
            try:
                self._turn.end(self._landed)
            finally:
                self._over.set()


def _view(slot: Segment) -> memoryview:
    return memoryview((c_char * slot.size).from_address(slot.address)).cast("B")


def _fill(memory: memoryview, fd: int, offset: int) -> None:
    """Reads a file into memory. Raises RolledBack."""
    done = 0
    while done < len(memory):
        try:
            n = os.preadv(fd, [memory[done:]], offset + done)
        except OSError as error:
            raise RolledBack(f"host memory of a suspended process cannot be read: {error}") from error
        if n == 0:
            raise RolledBack(f"host memory of a suspended process ends at byte {offset + done}")
        done += n


# ---- the way to the device ------------------------------------------------------------------------------------------


def open_lane(drain: DataDrain, slots: int) -> Lane:
    """Returns a lane for the calling thread. Raises DriverError."""
    found = drain.lane(slots) if has_lanes(drain) else None
    return found or Transfers(drain)


class Transfers:
    """Implements gcr.drain.Lane over a drain that has none: each copy is a transfer."""

    def __init__(self, drain: DataDrain) -> None:
        self._drain = drain
        self._flying: dict[int, Transfer] = {}

    def write(self, slot: int, device: int, host: int, size: int) -> None:
        self._flying[slot] = self._drain.write([Span(device, host, size)])

    def land(self, slot: int) -> None:
        if slot in self._flying:
            self._flying[slot].wait(LONGEST_COPY_S)
            del self._flying[slot]

    def close(self) -> None:
        """Waits for all copies, and then raises the error of one."""
        failed: list[Exception] = []
        for slot in list(self._flying):
            try:
                self.land(slot)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]
