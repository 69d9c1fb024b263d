"""Decides for each save of a rank whether its new chunks are compressed: where the store is slower than the codec.

A save takes as long as the slower of the two: the codec, which is given all bytes, and the store, which is given what
the codec makes of them. Uncompressed it takes as long as the store. Both rates, and the ratio, are those of the saves
before: the store's by what it was given, the codec's by some of the chunks where they were not compressed. One thread
stands for the codec then, so a store that is slower than several threads, but not than one, is left alone.

Those rates do not tell how much of the processor other work takes. So compression ends as well where saves that were
compressed have been no faster than those that were not.
"""

import random
import struct
import time
from collections import deque
from statistics import median
from typing import Literal, get_args

from msgspec import Struct

from gcr.errors import LibraryMissing, UsageError
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.pack.codec import encode, need_library
from gcr.image.pack.pace import Pace, Packing

Compress = Literal["off", "auto", "on"]

GAIN = 1.1  # how many times as fast a save must become
HEADROOM = 1.5  # of the codec over the store: the same cores name the chunks and fill the pack
LEAST = 8 << 20  # bytes that the store must have been given: a rate of fewer is mostly that of its sync
FASTER = 1.03  # by so much compressed saves must have been faster
_SAVES = 3  # the medians of so many count
_TRIALS = 5


class Compression:
    """The decision of one rank. `compress`: "off", "on", or "auto": by what is measured."""

    def __init__(self, compress: Compress) -> None:
        """Raises UsageError; LibraryMissing unless it is "off"."""
        if compress not in get_args(Compress):
            raise UsageError(f"compress={compress!r}: {', '.join(get_args(Compress))}")
        if compress != "off":
            need_library()
        self.asked: Compress = compress
        self._stores = deque[float](maxlen=_SAVES)  # bytes a second
        self._saves = {kind: deque[float](maxlen=_SAVES) for kind in (True, False)}  # bytes a second; if compressed
        self._codec, self._ratio = 0.0, 1.0

    def packing(self) -> Packing:
        """Returns how the next save is written."""
        if self.asked == "off":
            return "plain"
        return "compressed" if self.asked == "on" or (self._gain >= GAIN and not self._is_in_vain) else "sampled"

    def learn(self, pace: Pace | None, written: int, sent_s: float = 0.0) -> None:
        """Takes note of a save.

        written: bytes, before they were compressed · sent_s: seconds of sending it elsewhere, once the disk had it
        """
        if pace is None or pace.disk_bytes < LEAST or not pace.coded_s:
            return
        self._saves[pace.compressed].append(written / max(pace.took_s + sent_s, 1e-9))
        self._stores.append(pace.disk_bytes / max(pace.disk_s + sent_s, 1e-9))
        self._codec, self._ratio = pace.plain_bytes / pace.coded_s, pace.coded_bytes / pace.plain_bytes

    @property
    def why(self) -> str:
        """Says whether the next save is compressed, and by which figures."""
        if self.asked != "auto":
            return f"{self.asked}: asked for"
        if not self._stores:
            return "off: no save has measured the store yet"
        if self._is_in_vain:
            on, off = (f"{median(self._saves[kind]) / 1e6:,.0f} MB/s" for kind in (True, False))
            return f"off: compressed, saves were no faster: {on}, and {off} without"
        state = "on" if self.packing() == "compressed" else "off"
        rates = f"the store takes {self._store / 1e6:,.0f} MB/s, and the codec {self._codec / 1e6:,.0f} MB/s"
        return f"{state}: {rates}, of which it leaves {100 * self._ratio:.0f} %"

    @property
    def _store(self) -> float:
        return median(self._stores)

    @property
    def _is_in_vain(self) -> bool:
        on, off = self._saves[True], self._saves[False]
        return bool(on and off) and median(on) < FASTER * median(off)

    @property
    def _gain(self) -> float:
        return gain(self._store, self._codec, self._ratio) if self._stores else 0.0


class Codec(Struct, frozen=True):
    """The codec of one thread, on numbers like weights. bytes_per_s: that it takes · ratio: that it leaves of one."""

    bytes_per_s: float
    ratio: float


def codec() -> Codec | None:
    """Measures the codec for a moment, on normally distributed float32; returns None without the extra."""
    try:
        need_library()
    except LibraryMissing:
        return None
    count = CHUNK_BYTES // 4
    data = struct.pack(f"<{count}f", *(random.gauss(0, 0.02) for _ in range(count)))
    times = []
    for _ in range(_TRIALS):
        began = time.monotonic()
        code = encode(data) or data
        times.append(time.monotonic() - began)
    return Codec(len(data) / min(times), len(code) / len(data))


def gain(store: float, codec: float, ratio: float) -> float:
    """Returns how many times as fast a save becomes by compression.

    store, codec: bytes a second · ratio: bytes that the codec leaves of one
    """
    return min(codec / (HEADROOM * store), 1 / max(ratio, 1e-9))
