"""Work by several threads on memory of the caller, which may release it once the work is over."""

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

Item = TypeVar("Item")
Job = Callable[[], None]
Stage = Callable[[Any], Future[Any]]  # begins a job

AHEAD = 64  # jobs of a stage that begin before the first of them ends


def all_of(
    jobs: Iterable[Any], first: Stage, second: Stage, between: Callable[[Any], Any] = lambda result: result
) -> None:
    """Passes each job through both stages. One stage waits for a disk; the other prepares the disk's next job.

    The calling thread passes each result of the first stage on to the second, by `between`, in the order of the jobs.
    Where that is None, nothing is left to do.
    Raises the error of the first job that failed, or of the iterable; no job runs any more then.
    """
    begun: deque[Future[Any]] = deque()
    following: deque[Future[Any]] = deque()

    def pass_on() -> None:
        if (passed := between(_result_of(begun))) is not None:
            following.append(second(passed))
        while len(following) == AHEAD or (following and following[0].done()):
            _result_of(following)

    try:
        for job in jobs:
            begun.append(first(job))
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
    """Yields groups of items in order. A group has `most` bytes or fewer, or one item; each `follows` the last."""
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


@contextmanager
def working(threads: int, name: str) -> Iterator[Callable[[Job], None]]:
    """Yields a function that gives a job to the threads, which begin jobs in order. All are over after the block.

    A job raises nothing, and returns nothing: a Future for each would take longer than a short job.
    Raises OSError if a thread cannot start.
    """
    jobs = SimpleQueue[Job | None]()
    with started(threads, name) as pool:
        for _ in range(threads):
            pool.submit(_work, jobs)
        try:
            yield jobs.put
        finally:
            for _ in range(threads):
                jobs.put(None)


def _work(jobs: "SimpleQueue[Job | None]") -> None:
    while job := jobs.get():
        job()
        del job  # and what it refers to


def started(threads: int, name: str) -> ThreadPoolExecutor:
    """Starts all threads at once, so that no later job fails for want of one. Raises OSError if one cannot start."""
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
    """Returns the result of the first job, and takes it out of the line."""
    result = line[0].result()
    line.popleft()
    return result
