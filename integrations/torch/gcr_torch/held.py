"""Something open that its holder may forget to close. DCP tells readers and writers of no failure elsewhere."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import finalize

Thing = TypeVar("Thing")


class Held(Generic[Thing]):
    """Holds one thing at a time. It is closed when this is closed or dropped."""

    def __init__(self) -> None:
        self._thing: Thing | None = None
        self._dropped: Any = None

    @property
    def thing(self) -> Thing:
        assert self._thing is not None, "DCP has not begun this"
        return self._thing

    def hold(self, thing: Thing, close: Callable[[], object]) -> None:
        """Takes a thing; nothing is held before. `close` closes it, and refers to this in no way."""
        self._thing, self._dropped = thing, finalize(self, close)

    def close(self) -> None:
        """Closes the thing; does nothing without one."""
        if self._dropped:
            self._dropped()  # once
        self._thing = self._dropped = None
