"""The way of a copy back to the device: segment after segment where they are pinned, through slots where they are not.

A copy that this worker made is pinned. A copy that it took over from another worker is not (bounce.py).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field

from gcr.drain import DataDrain, Span, Transfer
from gcr.errors import DeadlinePassed, RolledBack
from gcr.memory.layout import Segment, spans_by_segment
from gcr.protocol.operations.operation import Progress
from gcr.protocol.operations.worker import Moved
from gcr.worker.bounce import Bounced, Queue, Slots, Turn, open_lane
from gcr.worker.guarded import paces
from gcr.worker.hostcopy import HostCopy
from gcr.worker.telling import Telling, wait_all, wait_for

Plan = Sequence[tuple[Segment, Sequence[Span]]]  # copies from each segment; `host` counts from its first byte


def copy_in(copy: HostCopy, deadline: float, progress: Progress, paced: Callable[[int], bool], slots: Slots) -> Moved:
    """Copies to memory that `Holding.create` made. Resident memory has its bytes already, and is left out.

    paced: whether so many bytes let the driver's copies in between
    Raises NoContext, DeadlinePassed, PeerGone, and RolledBack where the copy or its memory was given up meanwhile.
    """
    began, drain = time.monotonic(), copy.memory.drain
    with copy.lock, copy.memory.lock:
        lacking = [spec for spec in copy.handles() if spec.id not in copy.memory.filled]
        size, plan = sum(spec.size for spec in lacking), plan_by_segment(copy, [spec.id for spec in lacking])
        assert copy.segments
        unpinned = copy.arena.unpinned(copy.segments)
    refill = Refill(copy, drain, partial(paced, size), began + deadline, progress)
    refill.pinned([each for each in plan if each[0] not in unpinned])
    refill.unpinned([each for each in plan if each[0] in unpinned], slots)
    refill.wait()
    return Moved(size, time.monotonic() - began)


class Refill(Struct):
    """One refill. `paced`: whether the driver's copies are let in between. `end`: on time.monotonic()."""

    copy: HostCopy
    drain: DataDrain
    paced: Callable[[], bool]
    end: float
    progress: Progress
    transfers: list[Transfer] = field(default_factory=list)
    through: Bounced | None = None

    def pinned(self, plan: Plan) -> None:
        """Begins copies from pinned segments."""
        telling = Telling(self.transfers, self.progress)
        for segment, spans in plan:
            placed = [Span(s.device, s.host + segment.address, s.size) for s in spans]
            transfer = self._start(partial(write, self.drain, placed, self.paced))
            if self.paced():  # one transfer at a time; it becomes a fast one once the driver is done
                wait_for(transfer, telling, self.end)
            telling.now_and_then()

    def unpinned(self, plan: Plan, slots: Slots) -> None:
        """Begins copies through slots. Where the host lacks memory for slots, pins the segments instead."""
        if not plan:
            return
        turn = slots.take(sum(span.size for _, spans in plan for span in spans), self._look)
        if turn is None:
            self.copy.keep_promised()
            self.pinned(plan)
            return
        try:
            self._start(partial(self._bounced, Queue.of(plan, self._given_up), turn))
        except BaseException:
            turn.end()
            raise

    def wait(self) -> None:
        try:
            wait_all(Telling(self.transfers, self.progress), self.end)
        except BaseException:  # the holding waits for what is in flight before it releases memory
            if self.through:
                self.through.cancel()
            raise
        self.copy.ended(self.transfers)
        if self.through:
            self.through.check()

    def _bounced(self, queue: Queue, turn: Turn) -> Transfer:
        self.through = Bounced(queue, turn, partial(open_lane, self.drain), self.paced)
        return self.through

    def _given_up(self) -> bool:
        return self.copy.use.given_up

    def _look(self) -> None:
        """Raises DeadlinePassed, and RolledBack where the copy was given up."""
        if time.monotonic() >= self.end:
            raise DeadlinePassed("another refill of this device had the slots for too long")
        with self.copy.lock:
            self.copy.refuse_given_up()

    def _start(self, begin: Callable[[], Transfer]) -> Transfer:
        """Starts a transfer that is known to be in flight before any memory of it can be released."""
        copy = self.copy
        with copy.lock, copy.memory.lock:
            copy.refuse_given_up()
            if not copy.memory.ranges:
                raise RolledBack("the memory to refill was released meanwhile")
            transfer = begin()
            copy.began([transfer])
        self.transfers.append(transfer)
        return transfer


def write(drain: DataDrain, spans: Sequence[Span], paced: Callable[[], bool]) -> Transfer:
    """Starts a copy to the device. `paced`: whether the driver's copies are let in between."""
    return drain.write_paced(spans, paced) if paces(drain) else drain.write(spans)


def plan_by_segment(copy: HostCopy, ids: Sequence[int]) -> Plan:
    """Returns copies of these handles grouped by segment. The locks are held."""
    assert copy.segments
    sizes = [part.size for part in copy.segments]
    groups = spans_by_segment(copy.memory.ranges, copy.memory.sizes, copy.planned.of(ids), sizes)
    return [(part, spans) for part, spans in zip(copy.segments, groups, strict=False) if spans]
