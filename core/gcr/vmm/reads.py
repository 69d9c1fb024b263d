"""Reads of device memory that are under way, copies and hashes: memory is unmapped only while there are none.

To unmap memory under a copy in flight would break the context, and every host registration with it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gcr.errors import DeadlinePassed
from gcr.vmm.driver import VmmDriver
from gcr.vmm.lanes import StreamLane, open_lane
from gcr.vmm.streams import Streams
from gcr.vmm.transfer import Copy, Paced, Part, StreamTransfer, never

SETTLE_SECONDS = 60.0


class Reads:
    """The reads of one device. `check_idle` raises while a hash that was given up still runs. Thread-safe."""

    def __init__(self, driver: VmmDriver, check_idle: Callable[[], None]) -> None:
        self._driver = driver
        self._check_idle = check_idle
        self._streams = Streams(driver)
        self._transfers: list[StreamTransfer | StreamLane] = []
        self._lock = threading.Lock()  # guards the transfers; never held across a driver call
        self._reading = threading.Lock()  # held while memory is hashed or unmapped: never both

    def start(self, parts: Iterable[Part], copy: Copy, paced: Paced = never) -> StreamTransfer:
        transfer = StreamTransfer(self._driver, parts, copy, paced, self._streams)
        self._keep(transfer)
        return transfer

    def lane(self, slots: int) -> StreamLane | None:
        """Returns a lane; None where the driver's streams cannot wait for an event."""
        lane = open_lane(self._driver, self._streams, slots)
        if lane:
            self._keep(lane)
        return lane

    def _keep(self, begun: StreamTransfer | StreamLane) -> None:
        with self._lock:
            self._transfers = [each for each in self._transfers if each.running]
            self._transfers.append(begun)

    @contextmanager
    def hashing(self, timeout: float) -> Iterator[None]:
        """Keeps memory mapped within it. Raises DeadlinePassed."""
        if not self._reading.acquire(timeout=timeout):
            raise DeadlinePassed("other memory of this device is still being hashed")
        try:
            yield
        finally:
            self._reading.release()

    @contextmanager
    def none(self) -> Iterator[None]:
        """Waits for the reads; within it no hash begins. Raises DeadlinePassed, DriverError."""
        if not self._reading.acquire(timeout=SETTLE_SECONDS):
            raise DeadlinePassed("memory that is to be unmapped is still being hashed")
        try:
            self._check_idle()
            self._settle()
            yield
        finally:
            self._reading.release()

    def close(self) -> None:
        """Waits for the reads, and closes their streams. Raises DeadlinePassed, DriverError."""
        with self.none():
            self._streams.close()

    def _settle(self) -> None:
        with self._lock:
            running = [each for each in self._transfers if each.running]
        for transfer in running:
            transfer.wait(SETTLE_SECONDS)
