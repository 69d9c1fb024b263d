"""The progress of a transfer: the reports of all devices' workers, added up and told as one."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.events import ProgressEvent
from gcr.engine.node import Course
from gcr.protocol.operations.operation import Done

WINDOW = 1.0  # seconds over which the rate is taken
Copy = tuple[int, str]  # pid and device UUID


class Meter(Struct):
    """The meter of several copies at once. `sizes`: bytes of each. Thread-safe: workers report in parallel."""

    course: Course
    phase: str
    sizes: Mapping[Copy, int]
    clock: Callable[[], float] = time.monotonic
    _done: dict[Copy, int] = field(default_factory=dict)
    _links: dict[str, float] = field(default_factory=dict)
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _lock: Lock = field(default_factory=Lock)

    def start(self) -> None:
        """Starts the clock of the rate, unless it runs already."""
        with self._lock:
            self.course.progress(self._event())

    def at(self, copy: Copy, done: Done) -> None:
        """Takes the report of a worker. Its total replaces the size of that copy."""
        with self._lock:  # told inside the lock, or a report could overtake the one before
            if done.total_bytes is not None:
                self.sizes = {**self.sizes, copy: done.total_bytes}
            self._done[copy] = max(self._done.get(copy, 0), done.bytes)
            if done.link_bytes_per_s:
                self._links[copy[1]] = done.link_bytes_per_s
            self.course.progress(self._event())

    def _event(self) -> ProgressEvent:
        done, total = sum(self._done.values()), sum(self.sizes.values())
        event = ProgressEvent(phase=self.phase, bytes=done, total_bytes=total)
        if rate := self._rate(done):
            left = max(0, total - done) / rate
            event = replace(event, bytes_per_s=rate, left_s=left, link_share=self._share(rate))
        return event

    def _share(self, rate: float) -> float | None:
        """Returns the rate as a share of the links; None where one was never measured."""
        devices = {device for _, device in self.sizes}
        if not devices <= self._links.keys():
            return None
        return rate / sum(self._links[device] for device in devices)

    def _rate(self, done: int) -> float:
        """Returns the rate between steps: bytes come in pieces, and a look between two pieces says nothing new."""
        now = self.clock()
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        (since, before), (last, _) = self._seen[0], self._seen[-1]
        if now - last > WINDOW:  # it stands still
            last = now
        return (done - before) / (last - since) if last > since else 0.0
