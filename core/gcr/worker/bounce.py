"""The way to the device of host memory that is not pinned: through a few slots that are.

A driver pins host memory much slower than the link carries it. So memory that a worker takes over is not pinned for its
refill. Each thread has two slots: it reads a piece of a segment's file into one while the device copies the other.
Reading the file needs no page tables, as a mapping of the segment would.

    take      a refill's turn with the slots, which the arena has for the next refill as well
    Bounced   the threads at work: a transfer like any other
    end       by the last thread, once no copy from a slot is in flight
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_char
from itertools import cycle
from threading import Event, Lock, Thread

from msgspec import Struct, field

from gcr.drain import Span, Transfer
from gcr.errors import DeadlinePassed, NoRoom, RolledBack
from gcr.memory.arena import Arena, Segments
from gcr.memory.layout import Segment
from gcr.worker.snapshot import portions

log = logging.getLogger("gcr.worker")

SLOT_BYTES = 8 << 20
SLOTS_EACH = 2  # of a thread
OWNER = "slots"  # in the arena; no process has this name
LOOK_S = 0.05
LONGEST_COPY_S = 60.0  # from one slot; a copy over the link always ends

Write = Callable[[Sequence[Span]], Transfer]


class Piece(Struct, frozen=True):
    """Bytes of one segment that fit into a slot. The spans' `host` is an offset in the segment's file."""

    fd: int
    spans: Sequence[Span]

    @property
    def size(self) -> int:
        return sum(span.size for span in self.spans)


def pieces_of(segment: Segment, spans: Sequence[Span]) -> Iterator[Piece]:
    """Yields pieces of these copies, in their order. The spans' `host` counts from the segment's first byte."""
    return (Piece(segment.fd, portion) for portion in portions(spans, SLOT_BYTES))


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
        if landed:
            self.arena.give_back(self.segments)
        self.lock.release()


# ---- the copy -------------------------------------------------------------------------------------------------------


class Queue(Struct):
    """Pieces for several threads. Gives none any more once one has failed, or the copy is cancelled or given up."""

    pieces: Iterator[Piece]
    given_up: Callable[[], bool]
    cancelled: bool = False
    error: BaseException | None = None
    _whole: bool = False
    _lock: Lock = field(default_factory=Lock)

    def next(self) -> Piece | None:
        with self._lock:
            if self.error or self.cancelled or self.given_up():
                return None
            found = next(self.pieces, None)
            self._whole = found is None
            return found

    def check(self) -> None:
        """Raises what a thread has failed with, and RolledBack where not all pieces were taken."""
        if self.error:
            raise self.error
        if not self._whole:
            raise RolledBack("what was being copied was given up meanwhile")


class Bounced:
    """A copy to the device through slots, which begins at once and ends the turn. Implements gcr.drain.Transfer."""

    def __init__(self, queue: Queue, turn: Turn, write: Write) -> None:
        """Raises RolledBack where no thread is to be had; the turn is the caller's then."""
        self._queue, self._turn, self._write = queue, turn, write
        self._began, self._seconds, self._reading = time.monotonic(), 0.0, 0.0
        self._moved, self._landed = 0, True
        self._lock, self._over = Lock(), Event()
        lanes = turn.lanes()
        self._at_work = len(lanes)
        for number, lane in enumerate(lanes):
            try:
                Thread(target=self._run, args=(lane,), name="gcr-bounce", daemon=True).start()
            except RuntimeError as error:
                if number == 0:
                    raise RolledBack(f"no thread for a refill: {error}") from error
                self._ended(len(lanes) - number)  # the others do their share
                return

    def done(self) -> int:
        """Bytes that are on the device."""
        return self._moved

    def wait(self, timeout: float) -> float:
        """Waits for the end of all threads; seconds that they took. Raises DeadlinePassed, and `check` all else."""
        if not self._over.wait(max(0.0, timeout)):
            raise DeadlinePassed(f"a copy moved {self._moved} bytes and is not at its end")
        return self._seconds

    def cancel(self) -> None:
        """Lets no thread begin another piece."""
        self._queue.cancelled = True

    def check(self) -> None:
        """Raises the error that has ended the copy before its last byte, RolledBack where it was given up."""
        self._queue.check()

    def _run(self, lane: Sequence[Segment]) -> None:
        views, flying = cycle([(each.address, _view(each)) for each in lane]), deque[tuple[Transfer, int]]()
        reading = 0.0
        try:
            while piece := self._queue.next():
                if len(flying) == len(lane):
                    self._land(flying)
                address, memory = next(views)
                began = time.monotonic()
                spans = _read(piece, address, memory)
                reading += time.monotonic() - began
                flying.append((self._write(spans), piece.size))
            while flying:
                self._land(flying)
        except BaseException as error:  # raised by `check`
            self._queue.error = self._queue.error or error
            self._settle(flying)
        self._reading = max(self._reading, reading)
        self._ended(1)

    def _land(self, flying: deque[tuple[Transfer, int]]) -> None:
        transfer, size = flying[0]
        transfer.wait(LONGEST_COPY_S)
        flying.popleft()
        with self._lock:
            self._moved += size

    def _settle(self, flying: Iterable[tuple[Transfer, int]]) -> None:
        """Waits for the copies of a thread that has failed: its slots must not be written again before."""
        for transfer, _ in flying:
            try:
                transfer.wait(LONGEST_COPY_S)
            except Exception:
                log.exception("a copy from a slot may be in flight still")
                self._landed = False

    def _ended(self, threads: int) -> None:
        with self._lock:
            self._at_work -= threads
            last = self._at_work == 0
        if last:
            self._seconds = time.monotonic() - self._began
            text = "%d bytes through %d slots in %.3f s; a thread read for at most %.3f s"
            log.info(text, self._moved, len(self._turn.segments.parts), self._seconds, self._reading)
            self._turn.end(self._landed)
            self._over.set()


def _view(slot: Segment) -> memoryview:
    return memoryview((c_char * slot.size).from_address(slot.address)).cast("B")


def _read(piece: Piece, address: int, memory: memoryview) -> list[Span]:
    """Reads a piece into a slot, and returns the copies from there. Raises RolledBack."""
    at, found = 0, list[Span]()
    for span in piece.spans:
        _fill(memory[at : at + span.size], piece.fd, span.host)
        found.append(Span(span.device, address + at, span.size))
        at += span.size
    return found


def _fill(memory: memoryview, fd: int, offset: int) -> None:
    done = 0
    while done < len(memory):
        try:
            n = os.preadv(fd, [memory[done:]], offset + done)
        except OSError as error:
            raise RolledBack(f"host memory of a suspended process cannot be read: {error}") from error
        if n == 0:
            raise RolledBack(f"host memory of a suspended process ends at byte {offset + done}")
        done += n
