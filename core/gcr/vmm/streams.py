"""Copy streams that serve one transfer after the other: a refill by pieces has thousands of transfers."""

import threading
from contextlib import suppress

from gcr.errors import DriverError
from gcr.vmm.driver import CopyStream, VmmDriver

MOST_KEPT = 32


class Streams:
    """The streams of one device that no transfer uses, `most` of them. Thread-safe."""

    def __init__(self, driver: VmmDriver, most: int = MOST_KEPT) -> None:
        self._driver, self._most = driver, most
        self._kept: list[CopyStream] = []
        self._lock = threading.Lock()  # never held across a driver call

    def take(self) -> CopyStream:
        with self._lock:
            found = self._kept.pop() if self._kept else None
        return found or self._driver.stream()

    def give_back(self, stream: CopyStream) -> None:
        """Keeps a stream of which all work has ended without an error."""
        with self._lock:
            keeps = len(self._kept) < self._most
            if keeps:
                self._kept.append(stream)
        if not keeps:
            self.end(stream)

    def end(self, stream: CopyStream) -> None:
        """Closes a stream; after a failed copy the driver refuses, and it goes with the context."""
        with suppress(DriverError):
            stream.close()

    def close(self) -> None:
        """Closes the streams that are kept."""
        with self._lock:
            kept, self._kept = self._kept, []
        for stream in kept:
            self.end(stream)
