"""Work by several threads on memory that is somebody else's: whoever hears that it is over may take the memory away."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

Job = TypeVar("Job")
Found = TypeVar("Found")


def all_of(pool: ThreadPoolExecutor, work: Callable[[Job], Found], jobs: Iterable[Job]) -> list[Found]:
    """What `work` makes of each, in order. Raises what the first that failed raised, and then none runs any more."""
    futures = [pool.submit(work, job) for job in jobs]
    wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        future.cancel()
    wait(futures)
    for future in futures:
        if not future.cancelled() and (error := future.exception()):
            raise error
    return [future.result() for future in futures]
