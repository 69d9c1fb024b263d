"""Work by several threads on memory that is somebody else's: whoever hears that it is over may take the memory away."""

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any, TypeVar

Item = TypeVar("Item")
Stage = tuple[ThreadPoolExecutor, Callable[[Any], Any]]

AHEAD = 64  # jobs of a stage that are begun before the first of them is over


def all_of(
    jobs: Iterable[Any], first: Stage, second: Stage, between: Callable[[Any], Any] = lambda result: result
) -> None:
    """Each job through both stages. One of them waits for a disk, which has the next thing to do meanwhile.

    What the first makes of a job the caller passes on to the second, by `between`, in the order of the jobs.
    Raises what the first of them that failed raised, or what making one raised; then none runs any more.
    """
    begun: deque[Future[Any]] = deque()
    following: deque[Future[Any]] = deque()

    def pass_on() -> None:
        following.append(_begin(second, between(_result_of(begun))))
        while len(following) == AHEAD or (following and following[0].done()):
            _result_of(following)

    try:
        for job in jobs:
            begun.append(_begin(first, job))
            while len(begun) == AHEAD or (begun and begun[0].done()):
                pass_on()
        while begun:
            pass_on()
        while following:
            _result_of(following)
    finally:
        rest = [*begun, *following]
        for each in rest:
            each.cancel()
        wait(rest)


def groups(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    most: int,
    follows: Callable[[Item, Item], bool] = lambda _last, _next: True,
) -> Iterator[Sequence[Item]]:
    """Of items in their order: each of `most` bytes at most, or of one item. In a group each `follows` the last."""
    group: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (total + size > most or not follows(group[-1], item)):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def started(threads: int, name: str) -> ThreadPoolExecutor:
    """All of them: whoever submits a job later never fails for want of one. Raises OSError where there are none."""
    pool, met = ThreadPoolExecutor(threads, name), Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(met.wait)
    except BaseException as error:
        met.abort()
        pool.shutdown()
        if isinstance(error, RuntimeError):
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error
        raise
    return pool


def _result_of(line: deque[Future[Any]]) -> Any:
    """Of the first, which leaves the line when it is over."""
    result = line[0].result()
    line.popleft()
    return result


def _begin(stage: Stage, job: Any) -> Future[Any]:
    pool, work = stage
    return pool.submit(work, job)
