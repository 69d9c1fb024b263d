"""Work by several threads on memory that is somebody else's: whoever hears that it is over may take the memory away."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

Stage = tuple[ThreadPoolExecutor, Callable[[Any], Any]]

AHEAD = 64  # jobs that are made before the first of them is over


def all_of(jobs: Iterable[Any], *stages: Stage) -> None:
    """Each job through all stages: what one makes of it is the next one's. A stage that waits for a disk has threads of
    its own, which have the next thing to ask of it meanwhile.

    Raises what the first of them that failed raised, or what making one raised; then none runs any more.
    """
    under_way: deque[Future[Any]] = deque()
    try:
        for job in jobs:
            if len(under_way) == AHEAD:
                _await(under_way[0])
                under_way.popleft()
            under_way.append(_begin(job, stages))
        while under_way:
            _await(under_way[0])
            under_way.popleft()
    finally:
        _end([*under_way])


def _begin(job: Any, stages: tuple[Stage, ...]) -> Future[Any]:
    (pool, work), *rest = stages
    return pool.submit(_do, work, job, tuple(rest))


def _do(work: Callable[[Any], Any], job: Any, rest: tuple[Stage, ...]) -> Future[Any] | None:
    """The next stage of the same job."""
    done = work(job)
    return _begin(done, rest) if rest else None


def _await(stage: Future[Any] | None) -> None:
    while stage:
        stage = stage.result()


def _end(stages: list[Future[Any]]) -> None:
    while stages:
        for each in stages:
            each.cancel()
        wait(stages)
        over = (each for each in stages if not each.cancelled() and not each.exception())
        stages = [following for each in over if (following := each.result())]
