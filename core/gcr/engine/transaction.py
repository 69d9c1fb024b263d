"""Undo stack: the steps done to a job, and the way to take them back.

A checkpoint is a sequence of steps, any of which can fail or be cut short. Each pushes its undo before the next begins.
Steps of several processes run side by side, so pushing is thread-safe. The undos run one after another, last pushed
first, on the thread that rolls back.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Self

from msgspec import Struct, field

log = logging.getLogger(__name__)


class Transaction(Struct):
    """Undoes what was pushed, last first, unless committed. `failed` names the undos that did not work."""

    job: str = ""
    failed: list[tuple[str, Exception]] = field(default_factory=list)
    _undo: list[tuple[str, Callable[[], object]]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def push(self, step: str, undo: Callable[[], object]) -> None:
        """Remembers how to take `step` back. Call it before the step may have an effect."""
        with self._lock:
            self._undo.append((step, undo))

    def commit(self) -> None:
        """Forgets the undos: the steps stand, and nothing is taken back any more."""
        with self._lock:
            self._undo.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.roll_back(error)

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        """Undoes what was pushed where the block fails; else that stays, to be committed or rolled back later."""
        try:
            yield
        except BaseException as error:
            self.roll_back(error)
            raise

    def roll_back(self, error: BaseException | None) -> None:
        """Undoes what was pushed, last first. An undo that fails is noted in `error`, and stops no other."""
        while (entry := self._pop()) is not None:
            step, undo = entry
            try:
                undo()
            except Exception as second:  # must not hide the first error, nor stop the other undos
                log.exception("job %s: undo of %s failed", self.job, step)
                self.failed.append((step, second))
                if error:
                    error.add_note(f"undo of {step} failed as well: {second}")

    def _pop(self) -> tuple[str, Callable[[], object]] | None:
        with self._lock:
            return self._undo.pop() if self._undo else None
