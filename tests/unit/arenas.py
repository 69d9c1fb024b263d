"""An arena of a few MiB for tests; pinning is a record book."""

import ctypes
import os
import threading
import time
from collections.abc import Callable

from gcr.errors import DriverError
from gcr.memory.arena import Arena, Segment

MiB = 1 << 20


SEGMENT = 4 * MiB


PATIENCE = 20.0


class Pins:
    """Pinned ranges, as a driver would keep them: overlaps and unknown addresses are errors."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.ever = 0
        self.lock = threading.Lock()
        self.fail_after: int | None = None
        self.delay = 0.0
        self.begun = threading.Event()
        self.go_on: Callable[[], object] = lambda: None
        self.looking: Callable[[int, int], object] = lambda _address, _size: None

    def pin(self, address: int, size: int) -> None:
        self.begun.set()
        self.go_on()
        self.looking(address, size)
        time.sleep(self.delay)
        with self.lock:
            if self.fail_after is not None and self.ever >= self.fail_after:
                raise DriverError("cuMemHostRegister: out of memory")
            assert not any(a < address + size and address < a + s for a, s in self.now.items())
            ctypes.memmove(address, ctypes.string_at(address, 1), 1)  # it must be mapped and writable
            self.now[address] = size
            self.ever += 1

    def unpin(self, address: int) -> None:
        with self.lock:
            del self.now[address]


def make(pins, limit=64 * MiB, segment=SEGMENT, threads=4) -> Arena:
    return Arena(pins.pin, pins.unpin, segment_bytes=segment, limit_bytes=limit, threads=threads)


def wishing(**wishes):
    return lambda: wishes


def fill(segments, text: bytes) -> None:
    for part in segments:
        ctypes.memmove(part.address, text, len(text))


def read(part: Segment, size: int) -> bytes:
    return ctypes.string_at(part.address, size)


def failing_once(real, at: int, number: int):
    """The call of this number fails, counted from one."""
    calls = []

    def call(*given):
        calls.append(given)
        if len(calls) == at:
            raise OSError(number, os.strerror(number))
        return real(*given)

    return call
