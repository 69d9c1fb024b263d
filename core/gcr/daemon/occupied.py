"""The page that every agent maps to read: on which devices workers have memory for a moment (wire.h, OccupiedRecord).

The agent of a program that finds no room there asks the daemon, LET_GO, before the program is told. Without such memory
the program is told at once. The daemon writes before a worker takes anything, so every agent sees it, also one that was
stopped or busy then. The page counts for as long as the daemon lives; agents know when it is gone.

It says so for LINGER_S longer: an allocation that failed while the memory was there finds the agent looking only after
that was given back, and the daemon is asked and answers at once.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Timer

from gcr.devices import uuid_bytes
from gcr.errors import NoRoom
from gcr.protocol.agentwire import OccupiedRecord
from gcr.protocol.wire import OCCUPIED_DEVICES

LINGER_S = 0.5  # longer than an agent takes from a failure of the driver to its look at the page

_WORD = 16  # where the low byte of `occupied` is in a record
PAGE_BYTES = OCCUPIED_DEVICES * OccupiedRecord.SIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Occupied:
    """`fd`: what agents map; of a file that only this process can write. Thread-safe; never closed.

    linger_s: seconds for which the page says so when all was given back
    """

    linger_s: float = LINGER_S

    fd: int = field(init=False)
    _page: mmap.mmap = field(init=False)
    _rows: dict[str, int] = field(default_factory=dict)  # by device UUID
    _holders: dict[str, int] = field(default_factory=dict)
    _free_since: dict[str, float] = field(default_factory=dict)  # on time.monotonic(); of devices that linger
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        writable = os.memfd_create("gcr-occupied", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(writable, 0o600)
            os.posix_fallocate(writable, 0, PAGE_BYTES)  # no program that looks has to find memory for it
            fcntl.fcntl(writable, fcntl.F_ADD_SEALS, _SEALS)
            self._page = mmap.mmap(writable, PAGE_BYTES)
            self.fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(writable)

    @contextmanager
    def on(self, device: str) -> Iterator[None]:
        """Around all of the time in which a worker may have such memory. Raises NoRoom for too many devices."""
        self._count(device, 1)
        try:
            yield
        finally:
            self._count(device, -1)

    def _count(self, device: str, more: int) -> None:
        with self._lock:
            row = self._row(device)
            self._holders[device] += more
            if self._holders[device]:
                self._say(row, True)
                return
            begun, self._free_since[device] = device in self._free_since, time.monotonic()
        if not begun:
            self._clear_in(self.linger_s, device)

    def _clear_in(self, seconds: float, device: str) -> None:
        timer = Timer(seconds, self._clear, (device,))
        timer.daemon = True
        timer.start()

    def _clear(self, device: str) -> None:
        """Says that a device is free, if it has been for long enough; else that is looked at again."""
        with self._lock:
            left = self._free_since[device] + self.linger_s - time.monotonic()
            if self._holders[device] or left <= 0:
                self._say(self._rows[device], self._holders[device] > 0)
                del self._free_since[device]
                return
        self._clear_in(left, device)

    def _row(self, device: str) -> int:
        """Returns the offset of the device's record. A row keeps its device, so no reader takes one for another."""
        if device not in self._rows:
            row = len(self._rows) * OccupiedRecord.SIZE
            if row == PAGE_BYTES:
                raise NoRoom(f"more than {OCCUPIED_DEVICES} devices", missing=None)
            self._page[row : row + OccupiedRecord.SIZE] = OccupiedRecord(uuid_bytes(device)).pack()
            self._rows[device], self._holders[device] = row, 0
        return self._rows[device]

    def _say(self, row: int, occupied: bool) -> None:
        """Writes one byte, of which no reader sees half."""
        self._page[row + _WORD] = int(occupied)
