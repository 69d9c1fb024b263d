"""Brings chunks from their packs: a few threads read from the disk, others compare the chunks and copy them on.

So the disk always has work, and is asked in order. Chunks wait in a few bounce buffers. The buffer that was freed last
is used first, since the processor's cache may still hold it. No chunk is copied to its target before it was compared.

A caller may give memory to read into in place of a bounce buffer (`Group.into`). It has bytes that are not compared
until the call is over.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from enum import Enum
from functools import partial
from threading import Condition, local
from typing import Self

from msgspec import Struct

from gcr.errors import GcrError
from gcr.image.chunks.index import Run
from gcr.image.disk.bounce import buffers
from gcr.image.disk.threads import working
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.image.read.filepart import FilePart
from gcr.imageerrors import Damaged

GROUP_BYTES = 8 << 20  # of chunks that are read together, or one chunk
READERS = 3  # threads that read from the disk
COMPARERS = max(4, (os.cpu_count() or 1) * 3 // 8)  # the most threads that compare; a large image has two readers
WAITING = COMPARERS  # more buffers, with chunks that are compared


class Into(Enum):
    """The memory that chunks are read into, and compared in."""

    BUFFER = "buffer"  # and copied to the target then
    TARGET = "target"
    TARGET_IF_CACHED = "target if cached"  # a disk is faster with a buffer (disk/bounce.py)


class Group(Struct, frozen=True):
    """Chunks that lie one behind the other in a pack, and their target, where they will.

    into: for a run that `PackReader.fits` the target; else BUFFER, as for a file
    """

    pack: PackReader
    run: Run
    target: memoryview | FilePart
    into: Into = Into.BUFFER


class Fetcher:
    """Reads groups of chunks. No read is under way after the `with` block."""

    def __init__(self, threads: int, most: int, damaged: Callable[[PackReader], object]) -> None:
        """`threads`: that compare, at most COMPARERS · `most`: the largest size of a group in its pack.

        `damaged` is called with each pack that is damaged.
        """
        self._counts, self._most, self._damaged = (READERS, min(threads, COMPARERS)), most, damaged
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            self._free = buffers(READERS + WAITING, self._most)
            self._hand = _Hand(begun.enter_context(ExitStack()))
            self._compare = begun.enter_context(working(self._counts[1], "gcr-name"))
            self._read = begun.enter_context(working(self._counts[0], "gcr-read"))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def bring(self, groups: Iterable[Group], came: Callable[[int], object]) -> None:
        """Brings all groups. Raises as `Call.result`."""
        self.begin(groups, came).result()

    def begin(self, groups: Iterable[Group], came: Callable[[int], object]) -> "Call":
        """Begins to bring all groups; `came` is called with bytes, on any thread. Several calls may be under way."""
        call = Call(came)
        try:
            for number, group in enumerate(groups):
                call.begin()
                self._read(partial(self._fetch, _Job(call, number, group)))
        except BaseException as error:
            call.fail(-1, error)
        return call

    def _fetch(self, job: "_Job") -> None:
        """Reads a group into its target or a buffer, which the comparison has from then on."""
        group = job.group
        block, size = group.pack.extent(group.run)
        buffer = None if self._goes_in_place(group) else self._free.get()
        stored = memoryview(group.target) if buffer is None else buffer[:size]  # type: ignore[arg-type]
        if self._does(job, lambda: self._at_hand(group.pack).blocks(block, stored)):
            self._compare(partial(self._take, job, buffer, stored))
        else:
            self._over(job, buffer)

    def _goes_in_place(self, group: Group) -> bool:
        """Returns whether a group is read into its target. Raises nothing: the read itself says what is wrong."""
        if group.into is Into.TARGET_IF_CACHED:
            with suppress(OSError, GcrError):
                return self._at_hand(group.pack).is_cached(*group.pack.extent(group.run))
            return False
        return group.into is Into.TARGET

    def _take(self, job: "_Job", buffer: memoryview | None, stored: memoryview) -> None:
        group = job.group
        if buffer is None:
            self._does(job, lambda: group.pack.compared(group.run, stored))
        elif isinstance(group.target, FilePart):
            self._does(job, partial(_write, group.target, group, stored))
        else:
            self._does(job, partial(group.pack.take, group.run, stored, group.target))
        self._does(job, lambda: job.call.came(len(group.target)))
        self._over(job, buffer)

    def _does(self, job: "_Job", step: Callable[[], object]) -> bool:
        """Does a step unless the job, or one before it, has failed. Returns whether it was done; raises nothing."""
        if job.call.failed_by(job.number):
            return False
        try:
            try:
                step()
            except Damaged:
                self._damaged(job.group.pack)
                raise
        except BaseException as error:
            job.call.fail(job.number, error)
            return False
        return True

    def _over(self, job: "_Job", buffer: memoryview | None) -> None:
        if buffer is not None:
            self._free.put(buffer)
        job.call.end()

    def _at_hand(self, pack: PackReader) -> OpenPack:
        """Opens a pack, one at a time for each thread: an image may have more packs than open files are allowed."""
        if self._hand.pack is not pack:
            self._hand.pack = None
            self._hand.open.close()
            self._hand.file = self._hand.open.enter_context(pack.opened())
            self._hand.pack = pack
        return self._hand.file


def _write(target: FilePart, group: Group, stored: memoryview) -> None:
    """Writes chunks that were read, once each was compared. Raises Damaged before it writes any; Unwritten."""
    target.write(group.run.pieces(group.pack.compared(group.run, stored)))


class Call:
    """Groups that are asked for together. Thread-safe."""

    def __init__(self, came: Callable[[int], object]) -> None:
        self.came = came
        self._changed = Condition()
        self._under_way = 0
        self._failed: tuple[int, BaseException] | None = None  # the first group that failed, and its error

    def begin(self) -> None:
        with self._changed:
            self._under_way += 1

    def end(self) -> None:
        with self._changed:
            self._under_way -= 1
            if not self._under_way:
                self._changed.notify_all()

    def result(self) -> None:
        """Waits until no group is under way.

        Raises, once, the error of the first group that failed, Damaged or OSError.
        """
        try:
            self._wait()
        except BaseException as error:
            self.fail(-1, error)
            self._wait()
        self._refuse_failed()

    def stop(self) -> None:
        """Begins no other group, and waits until none is under way. There is no result then."""
        self.fail(-1, InterruptedError("the call was stopped"))
        self._wait()
        self._failed = None

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def fail(self, number: int, error: BaseException) -> None:
        with self._changed:
            if not self.failed_by(number):
                self._failed = number, error

    def failed_by(self, number: int) -> bool:
        """Returns whether this group, or one before it, has failed."""
        return self._failed is not None and self._failed[0] <= number

    def _refuse_failed(self) -> None:
        """Raises the error once; nothing refers to it any more then, nor it to the targets."""
        if self._failed:
            (_, error), self._failed = self._failed, None
            try:
                raise error
            finally:
                del error


class _Job(Struct, frozen=True):
    """A group, and its number in the call."""

    call: Call
    number: int
    group: Group


class _Hand(local):
    """The pack that a thread has open. `open` closes it."""

    def __init__(self, all_hands: ExitStack) -> None:
        self.pack: PackReader | None = None
        self.file: OpenPack
        self.open = ExitStack()
        all_hands.callback(self.open.close)
