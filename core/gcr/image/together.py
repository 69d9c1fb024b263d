"""Work by several threads on memory that is somebody else's: whoever hears that it is over may take the memory away."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Job = TypeVar("Job")

AHEAD = 64  # jobs that are made before the first of them is over


def all_of(pool: ThreadPoolExecutor, work: Callable[[Job], object], jobs: Iterable[Job]) -> None:
    """Raises what the first of them that failed raised, or what making one raised; then none runs any more."""
    under_way: deque[Future[object]] = deque()
    try:
        for job in jobs:
            if len(under_way) == AHEAD:
                under_way.popleft().result()
            under_way.append(pool.submit(work, job))
        while under_way:
            under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
        wait(under_way)
