"""Brings chunks from their packs: a few threads read from the disk, others compare the chunks and copy them on.

So the disk always has work, and is asked in order. Chunks wait in a few bounce buffers. The buffer that was freed last
is used first, since the processor's cache may still hold it. No chunk is copied to its target before it was compared.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from threading import Event, local
from typing import Self

from msgspec import Struct

from gcr.image.chunks.index import Run
from gcr.image.disk.bounce import buffers
from gcr.image.disk.threads import started
from gcr.image.pack.reader import OpenPack, PackReader
from gcr.imageerrors import Damaged

READERS = 3  # threads that read from the disk
COMPARERS = max(4, (os.cpu_count() or 1) // 2)  # the most threads that compare
WAITING = COMPARERS  # more buffers, with chunks that are compared


class Group(Struct, frozen=True):
    """Chunks that lie one behind the other in a pack, and their target, where they will."""

    pack: PackReader
    run: Run
    target: memoryview


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
            self._comparing = begun.enter_context(started(self._counts[1], "gcr-name"))
            self._reading = begun.enter_context(started(self._counts[0], "gcr-read"))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def bring(self, groups: Iterable[Group], came: Callable[[int], object]) -> None:
        """Brings all groups; `came` is called with bytes, on any thread. Several calls may run at once.

        Raises the error of the first group that failed, Damaged or OSError; no group of the call is under way then.
        """
        stopped, begun = Event(), list[Future[Future[None]]]()
        try:
            for group in groups:
                begun.append(self._reading.submit(self._fetch, group, came, stopped))
            for fetched in begun:
                fetched.result().result()
        finally:
            stopped.set()
            for fetched in begun:
                if fetched.exception() is None:
                    fetched.result().exception()

    def _fetch(self, group: Group, came: Callable[[int], object], stopped: Event) -> Future[None]:
        """Reads a group. Returns the comparison, which has the buffer from then on."""
        buffer = self._free.get()
        try:
            if stopped.is_set():
                raise CancelledError
            stored = buffer[: group.run.stored_bytes]
            self._at_hand(group.pack).blocks(group.run.block, stored)
            return self._comparing.submit(self._take, group, buffer, came)
        except BaseException as error:
            self._free.put(buffer)
            self._tell(group.pack, error)
            raise

    def _take(self, group: Group, buffer: memoryview, came: Callable[[int], object]) -> None:
        try:
            group.pack.take(group.run, buffer[: group.run.stored_bytes], group.target)
            came(len(group.target))
        except BaseException as error:
            self._tell(group.pack, error)
            raise
        finally:
            self._free.put(buffer)

    def _tell(self, pack: PackReader, error: BaseException) -> None:
        if isinstance(error, Damaged):
            self._damaged(pack)

    def _at_hand(self, pack: PackReader) -> OpenPack:
        """Opens a pack, one at a time for each thread: an image may have more packs than open files are allowed."""
        if self._hand.pack is not pack:
            self._hand.pack = None
            self._hand.open.close()
            self._hand.file = self._hand.open.enter_context(pack.opened())
            self._hand.pack = pack
        return self._hand.file


class _Hand(local):
    """The pack that a thread has open. `open` closes it."""

    def __init__(self, all_hands: ExitStack) -> None:
        self.pack: PackReader | None = None
        self.file: OpenPack
        self.open = ExitStack()
        all_hands.callback(self.open.close)
