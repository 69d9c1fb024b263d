"""The packs that the chunks of an image go into: one on a disk, several side by side in memory.

The kernel lets one writer at a time into a file in memory, at 2.5 to 2.8 GB/s. So there are several files, each with
threads of its own. Chunks that follow each other go to one pack for a row of them, since readers read long runs.
"""

import os
from collections.abc import Callable, Sequence

from gcr.image.chunks.entry import Entry
from gcr.image.pack.format import Pack
from gcr.image.pack.writer import PackWriter

FULL = 64 << 20  # bytes in each pack before another is begun
ROW = 32 << 20  # bytes that go to one pack before another has its turn
MOST = 4  # packs at once


class NewPacks:
    """The packs of an image that are not finished. Not thread-safe; `finish` waits for the threads of the packs."""

    def __init__(self, begin: Callable[[], PackWriter]) -> None:
        """Begins a pack. Raises OSError."""
        self._begin = begin
        self.ids = set[str]()  # those of all packs so far, also of finished ones
        self._open = list[PackWriter]()
        self._most = min(MOST, len(os.sched_getaffinity(0))) if self._begun().may_be_one_of_several else 1
        self._now, self._until = self._open[0], ROW

    def _begun(self) -> PackWriter:
        pack = self._begin()
        self._open.append(pack)
        self.ids.add(pack.id)
        return pack

    def place(self, chunks: Sequence[tuple[bytes, int]]) -> tuple[PackWriter, Sequence[Entry]]:
        """Returns the pack that takes these chunks, and their places there. Raises OSError."""
        if self._now.placed_bytes >= self._until and chunks:
            self._now = self._next()
            self._until = self._now.placed_bytes + ROW
        return self._now, self._now.place(chunks)

    def _next(self) -> PackWriter:
        """Returns the smallest pack, or another one once all are full."""
        smallest = min(self._open, key=lambda pack: pack.placed_bytes)
        return self._begun() if smallest.placed_bytes >= FULL and len(self._open) < self._most else smallest

    def finish(self) -> Sequence[Pack]:
        """Finishes the packs that have chunks, and returns them. None has its final name before each can have it.

        Raises OSError.
        """
        some = [pack for pack in self._open if pack.placed_bytes]
        found = [pack.end() for pack in some]
        for pack in some:
            pack.publish()
            self._open.remove(pack)
        return found

    def turn(self) -> Sequence[Pack]:
        """Finishes the packs as `finish`, and begins another. Raises OSError."""
        found = self.finish()
        if found:
            self._now, self._until = self._begun(), ROW
        return found

    def abandon(self) -> None:
        """Removes the packs that are not finished. Raises nothing."""
        for pack in self._open:
            pack.abandon()
