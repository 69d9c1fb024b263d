"""The codec of the packs of an image that is written, and how fast the disk and the codec are.

A rate counts the seconds in which at least one thread was at work, and no pauses. So a disk that waits for the codec
does not seem slow.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Literal

from msgspec import Struct

from gcr.image.chunks.entry import Entry, padded
from gcr.image.pack.codec import encode, need_library
from gcr.image.pack.layout import DIGEST_BYTES

Packing = Literal["plain", "sampled", "compressed"]
"""plain: chunks are stored as they are · sampled: as well, and some are compressed to see how that goes"""

_EVERY = 4  # of so many groups of chunks that are written together, the largest chunk of one group is a sample


class Pace(Struct, frozen=True):
    """The rates that were seen while the packs of an image, or of a part of one, were written.

    disk_bytes, disk_s: that the disk took, with its sync · plain_bytes, coded_bytes, coded_s: what the codec was given,
    made of it, and in which time · compressed: these were all chunks of the packs, and not samples · took_s: in all
    """

    disk_bytes: int
    disk_s: float
    plain_bytes: int
    coded_bytes: int
    coded_s: float
    compressed: bool
    took_s: float


class Busy:
    """Bytes, and the seconds in which at least one thread was at work on them. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes, self.seconds = 0, 0.0
        self._clock, self._lock, self._at_work, self._since = clock, Lock(), 0, 0.0

    @contextmanager
    def busy(self, nbytes: int) -> Iterator[None]:
        with self._lock:
            if not self._at_work:
                self._since = self._clock()
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self.bytes += nbytes
                self._at_work -= 1
                if not self._at_work:
                    self.seconds += self._clock() - self._since


class Packed(Struct, frozen=True):
    """Chunks as they are stored, and digests of these bytes."""

    data: Sequence[memoryview]
    digests: Sequence[bytes]


class Pacer:
    """The codec of an image's packs, and the work of it and of the disk. Thread-safe."""

    def __init__(self, name_of: Callable[[bytes | memoryview], bytes], packing: Packing) -> None:
        """`name_of`: the digest. Raises LibraryMissing where the codec is not there and is asked for."""
        if packing != "plain":
            need_library()
        self.compresses, self._samples = packing == "compressed", packing == "sampled"
        self.disk, self._codec, self._began = Busy(), Busy(), time.monotonic()
        self._name_of, self._groups = name_of, count()
        self._lock, self._coded = Lock(), 0
        self.stored = 0  # bytes of chunks, as they lie in the packs

    def packed(self, entries: Sequence[Entry], data: Sequence[memoryview]) -> Packed | None:
        """Returns chunks as they are to be stored; None: as they are."""
        if not self.compresses:
            self._count(sum(entry.size for entry in entries))
            if self._samples and next(self._groups) % _EVERY == 0:
                self._code(max(data, key=len))
            return None
        found, digests = list[memoryview](), list[bytes]()
        for entry, chunk in zip(entries, data, strict=True):
            code = self._code(chunk)
            worth = code is not None and padded(len(code)) < padded(entry.size)
            found.append(memoryview(code) if code is not None and worth else chunk)
            digests.append((self._name_of(found[-1]) if worth else entry.name)[:DIGEST_BYTES])
        self._count(sum(map(len, found)))
        return Packed(found, digests)

    def pace(self) -> Pace:
        codec = self._codec.bytes, self._coded, self._codec.seconds
        return Pace(self.disk.bytes, self.disk.seconds, *codec, self.compresses, time.monotonic() - self._began)

    def _code(self, chunk: memoryview) -> bytes | None:
        with self._codec.busy(len(chunk)):
            code = encode(chunk)
        with self._lock:
            self._coded += len(chunk) if code is None else len(code)
        return code

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.stored += nbytes
