"""Steps of several processes, run at once. All of them end before an error is raised.

An undo must never run beside the step it undoes. A job may have a thousand processes: at most AT_ONCE steps run at a
time, and the others wait for their turn, in order.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")

AT_ONCE = 64
ALL = 1 << 20  # for steps that wait for each other's processes, and for no helper that they share


def side_by_side(steps: Iterable[Callable[[], Result]], at_once: int = AT_ONCE) -> list[Result]:
    """Runs all, waits for all, then raises the first error; the others become its notes. Returns results in order.

    The calling thread takes its share, so that fewer threads than wanted are enough.
    """
    todo = list(steps)
    if len(todo) < 2:
        return [step() for step in todo]
    queue = _Queue(todo)
    helpers = list(_started(queue.work, min(len(todo), at_once) - 1))
    queue.work()
    for helper in helpers:
        helper.join()
    return _results(queue.done)


def on_thread(name: str, step: Callable[[], Result]) -> Future[Result]:
    """Runs a step on a thread of that name. Returns its result to come."""
    done = Future[Result]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(step())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return done


class _Queue(Generic[Result]):
    """Steps in their order, each taken by one thread."""

    def __init__(self, steps: list[Callable[[], Result]]) -> None:
        self.done: list[Future[Result]] = [Future() for _ in steps]
        self._steps = iter(zip(steps, self.done, strict=True))
        self._lock = Lock()

    def work(self) -> None:
        """Runs steps until none is left. Raises nothing."""
        while (taken := self._next()) is not None:
            step, done = taken
            try:
                done.set_result(step())
            except BaseException as error:
                done.set_exception(error)

    def _next(self) -> "tuple[Callable[[], Result], Future[Result]] | None":
        with self._lock:
            return next(self._steps, None)


def _started(work: Callable[[], None], count: int) -> Iterator[Thread]:
    """Starts threads, as many as the process has room for."""
    with suppress(RuntimeError):
        for _ in range(count):
            thread = Thread(target=work, name="gcr-step", daemon=True)
            thread.start()
            yield thread


def _results(done: list[Future[Result]]) -> list[Result]:
    errors = [error for error in (one.exception() for one in done) if error]
    for other in errors[1:]:
        errors[0].add_note(f"beside it: {other}")
    if errors:
        raise errors[0]
    return [one.result() for one in done]
