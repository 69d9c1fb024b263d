"""Records of the chunks that were brought to an image so far, by number, as the image's files have them.

The records lie in byte arrays. Millions of Python objects would take several times the memory, and the garbage
collector would stop every thread to visit them, again and again.
"""

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from gcr.hashing import DIGEST_BYTES
from gcr.image.chunks.chunk import Chunk
from gcr.image.chunks.records import Records
from gcr.image.files import references
from gcr.image.files.references import RECORD_BYTES


class Brought(NamedTuple):
    """One chunk of an image. `pack`: its number in the references, or ZEROS."""

    number: int
    chunk: Chunk
    pack: int
    block: int


class BroughtChunks:
    """The records of all chunks. Several threads may `add` at once."""

    def __init__(self) -> None:
        self.count, self._lock = 0, Lock()
        self.references, self.digests = bytearray(), bytearray()
        self._there = bytearray()  # by number: 1 for a chunk that was brought, else 0

    def add(self, chunks: Sequence[Brought]) -> int | None:
        """Adds chunks. Returns a number that was brought before, or is among them twice: then it adds none."""
        with self._lock:
            if (twice := self._twice(chunks)) is None:
                self._add(chunks)
            return twice

    def add_run(self, first: int, found: bytes, digests: bytes) -> int | None:
        """Adds chunks from the number `first` on by their packed records. Returns as `add`. digests: empty for none."""
        count = len(found) // RECORD_BYTES
        with self._lock:
            if (twice := self._there.find(1, first, first + count)) >= 0:
                return twice
            self._grow(first + count)
            self.references[first * RECORD_BYTES : (first + count) * RECORD_BYTES] = found
            self.digests[first * DIGEST_BYTES : first * DIGEST_BYTES + len(digests)] = digests
            self._there[first : first + count] = bytes([1]) * count
            self.count += count
        return None

    def _twice(self, chunks: Iterable[Brought]) -> int | None:
        seen = set[int]()
        for each in chunks:
            if each.number in seen or self._there[each.number : each.number + 1] == b"\1":
                return each.number
            seen.add(each.number)
        return None

    def _add(self, chunks: Sequence[Brought]) -> None:
        self._grow(max((each.number + 1 for each in chunks), default=0))
        for number, (name, digest), pack, block in chunks:
            references.pack_into(self.references, number, (name, pack, block))
            if digest:  # else there are none in this image
                self.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] = digest
            self._there[number] = 1
        self.count += len(chunks)

    def missing(self, first: int, count: int) -> int | None:
        """Returns the first of `count` numbers that was never brought, or None."""
        found = self._there.find(0, first, first + count)
        end = min(max(first, len(self._there)), first + count)
        return found if found >= 0 else end if end < first + count else None

    def records(self, first: int, count: int) -> Records:
        """Returns a copy of the references of `count` chunks."""
        with self._lock:
            return Records(bytes(self.references[first * RECORD_BYTES : (first + count) * RECORD_BYTES]), RECORD_BYTES)

    def _grow(self, count: int) -> None:
        more = max(0, count - len(self._there))
        for memory, size in ((self.references, RECORD_BYTES), (self.digests, DIGEST_BYTES), (self._there, 1)):
            memory.extend(bytes(more * size))
