"""Copies to the device from a few slots, thousands of them on one stream.

The link carries a slot of 2 MiB in 40 µs, and all threads of a refill share Python's lock. So a copy costs three calls
of the driver and little else: a lane has a stream for the whole refill and an event for each slot, and waits in the
driver.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from gcr.errors import DeadlinePassed, DriverError
from gcr.vmm.driver import Event, VmmDriver, WaitsForEvents
from gcr.vmm.streams import Streams

POLL_SECONDS = 0.0005
LONGEST_COPY_SECONDS = 60.0  # a copy over the link always ends


class StreamLane:
    """Implements gcr.drain.Lane. Other threads may ask whether it is `running`, and `wait` for its copies."""

    def __init__(self, driver: VmmDriver, streams: Streams, stream: WaitsForEvents, events: list[Event]) -> None:
        self._driver, self._streams, self._stream, self._events = driver, streams, stream, events
        self._flying = [False] * len(events)
        self._lock = threading.Lock()  # held to end the lane, and to look at its stream from another thread
        self.running = True

    def write(self, slot: int, device: int, host: int, size: int) -> None:
        self._flying[slot] = True
        self._stream.host_to_device(device, host, size)
        self._stream.mark_again(self._events[slot])

    def land(self, slot: int) -> None:
        if self._flying[slot]:
            self._stream.wait_for(self._events[slot])
            self._flying[slot] = False

    def wait(self, timeout: float) -> float:
        """Waits until no copy is in flight; seconds that it took. Raises DeadlinePassed."""
        began = time.monotonic()
        self._driver.enter()
        while not self._rests():
            if time.monotonic() >= began + timeout:
                raise DeadlinePassed(f"a copy from a slot is not at its end after {timeout:.3f} s")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def _rests(self) -> bool:
        with self._lock:
            return not self.running or self._stream.idle()

    def close(self) -> None:
        if not self.running:
            return
        try:
            self._settle()
        finally:
            with self._lock:
                self.running = False
                self._give_back()

    def _settle(self) -> None:
        """Waits, not in the driver but for a bounded time, for what `land` has not."""
        if any(self._flying):
            self.wait(LONGEST_COPY_SECONDS)
        for slot, event in enumerate(self._events):
            if self._flying[slot] and not self._stream.passed(event):
                raise DriverError("a stream has no work left, but an event on it has not passed")
            self._flying[slot] = False

    def _give_back(self) -> None:
        _forget(self._stream, self._events)
        if any(self._flying):
            self._streams.end(self._stream)
        else:
            self._streams.give_back(self._stream)


def _forget(stream: WaitsForEvents, events: Iterable[Event]) -> None:
    for event in events:
        with suppress(DriverError):  # after a failed copy the driver refuses; it goes with the context
            stream.forget(event)


def open_lane(driver: VmmDriver, streams: Streams, slots: int) -> StreamLane | None:
    """Returns a lane on a stream of its own; None where the driver's streams cannot wait for an event."""
    stream = streams.take()
    if not isinstance(stream, WaitsForEvents):
        streams.give_back(stream)
        return None
    events: list[Event] = []
    try:
        for _ in range(slots):
            events.append(stream.mark(timed=False))
    except DriverError:
        _forget(stream, events)
        streams.end(stream)
        raise
    return StreamLane(driver, streams, stream, events)
