"""Helpers that were started before they are asked for: the start of a program in Python takes 0.1 s and more of a core.

A spare has no work. It ends with its channel, like any helper.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, field

from gcr.protocol.channel import Channel


class Peer(Protocol):
    """A helper, as the daemon sees it."""

    @property
    def channel(self) -> Channel: ...

    @property
    def pid(self) -> int: ...


Helper = TypeVar("Helper", bound=Peer)


class Spares(Struct, Generic[Helper]):
    """Spares of one kind. Thread-safe."""

    _there: list[Helper] = field(default_factory=list)
    _starting: Lock = field(default_factory=Lock)
    _lock: Lock = field(default_factory=Lock)

    def take(self) -> Helper | None:
        """Returns one that lives, the caller's from then on; None where there is none. Waits for no start."""
        with self._lock:
            while self._there:
                first = self._there.pop(0)
                if not first.channel.closed.is_set():
                    return first
        return None

    def fill_up(self, count: int, start: Callable[[], Helper]) -> None:
        """Starts some until there are `count`. Raises as `start`."""
        with self._starting:
            while self._living() < count:
                made = start()
                with self._lock:
                    self._there.append(made)

    def end(self, chosen: Callable[[int], bool] = lambda _pid: True) -> None:
        """Ends all of them, or those with chosen pids."""
        with self._lock:
            old = [each for each in self._there if chosen(each.pid)]
            self._there = [each for each in self._there if each not in old]
        for each in old:
            each.channel.close()

    def _living(self) -> int:
        with self._lock:
            self._there = [each for each in self._there if not each.channel.closed.is_set()]
            return len(self._there)
