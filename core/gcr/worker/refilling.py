"""The way of a copy back to the device, segment after segment, each as soon as it is pinned."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from gcr.drain import DataDrain, Span, Transfer
from gcr.errors import RolledBack
from gcr.memory.layout import Segment, spans_by_segment
from gcr.protocol.operations.operation import Progress
from gcr.protocol.operations.worker import Moved
from gcr.worker.guarded import paces
from gcr.worker.hostcopy import HostCopy
from gcr.worker.telling import Telling, wait_all, wait_for


def copy_in(copy: HostCopy, deadline: float, progress: Progress, paced: Callable[[int], bool]) -> Moved:
    """Copies to memory that `Holding.create` made. Resident memory has its bytes already, and is left out.

    paced: whether so many bytes let the driver's copies in between
    Raises NoContext, DeadlinePassed, PeerGone, and RolledBack where the copy or its memory was given up meanwhile.
    """
    began, drain = time.monotonic(), copy.memory.drain
    with copy.lock, copy.memory.lock:
        lacking = [spec for spec in copy.handles() if spec.id not in copy.memory.filled]
        size, groups = sum(spec.size for spec in lacking), plan_by_segment(copy, [spec.id for spec in lacking])
    transfers: list[Transfer] = []
    telling = Telling(transfers, progress)
    for index, plan in enumerate(groups):
        if not plan:
            continue
        segment = segment_of(copy, index, began + deadline - time.monotonic())
        slowly = partial(paced, size)
        spans = [Span(s.device, s.host + segment.address, s.size) for s in plan]
        transfers.append(_start(copy, partial(write, drain, spans, slowly)))
        if slowly():  # one transfer at a time; it becomes a fast one once the driver is done
            wait_for(transfers[-1], telling, began + deadline)
        telling.now_and_then()
    wait_all(telling, began + deadline)
    copy.ended(transfers)
    with copy.lock:
        if copy.arriving:
            copy.segments, copy.arriving = copy.arriving.finish(), None
    return Moved(size, time.monotonic() - began)


def write(drain: DataDrain, spans: Sequence[Span], paced: Callable[[], bool]) -> Transfer:
    """Starts a copy to the device. `paced`: whether the driver's copies are let in between."""
    return drain.write_paced(spans, paced) if paces(drain) else drain.write(spans)


def _start(copy: HostCopy, write: Callable[[], Transfer]) -> Transfer:
    """Starts a transfer that is known to be in flight before any memory of it can be released."""
    with copy.lock, copy.memory.lock:
        copy.refuse_given_up()
        if not copy.memory.ranges:
            raise RolledBack("the memory to refill was released meanwhile")
        transfer = write()
        copy.began([transfer])
    return transfer


def plan_by_segment(copy: HostCopy, ids: Sequence[int]) -> list[list[Span]]:
    """Returns copies of these handles grouped by segment; `host` counts from the segment's first byte."""
    layout = copy.planned.of(ids)
    return spans_by_segment(copy.memory.ranges, copy.memory.sizes, layout, _segment_sizes(copy))


def _segment_sizes(copy: HostCopy) -> Sequence[int]:
    if copy.arriving:
        return copy.arriving.sizes
    assert copy.segments
    return [part.size for part in copy.segments]


def segment_of(copy: HostCopy, index: int, timeout: float) -> Segment:
    """Returns a segment once it is pinned. Raises DeadlinePassed, RolledBack."""
    if copy.arriving:
        return copy.arriving.wait(index, timeout)
    assert copy.segments
    return copy.segments.parts[index]
