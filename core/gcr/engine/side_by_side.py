"""Run steps of several processes at once, and let every one end before an error is looked at.

An undo must never run beside the step it undoes.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def side_by_side(steps: Iterable[Callable[[], Result]]) -> list[Result]:
    """Run all, wait for all, then raise the first error; the others become its notes. What they return, in order."""
    todo = list(steps)
    if len(todo) < 2:
        return [step() for step in todo]
    with ThreadPoolExecutor(len(todo), thread_name_prefix="gcr-step") as pool:
        running = [pool.submit(step) for step in todo]
        errors = [error for error in (one.exception() for one in running) if error]
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"beside it: {other}")
        raise errors[0]
    return [one.result() for one in running]
