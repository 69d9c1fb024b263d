"""Descriptors that one message does not hold: cut into batches, put together again, and gathered page by page."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from threading import Lock
from typing import TypeVar

from msgspec import Struct, field

from gcr.errors import RolledBack, UsageError
from gcr.protocol.seqpacket import close_all

BATCH = 200  # descriptors in one message

T = TypeVar("T")


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[tuple[int, Sequence[T]]]:
    """Yields the items in order, at most `size` at a time, each time with the number of those before."""
    return ((first, items[first : first + size]) for first in range(0, len(items), size))


def paged(page: Callable[[int, int], Sequence[int]], most: int, source: str) -> list[int]:
    """Returns all descriptors of a source, the caller's: `page` is asked with offset and limit until it has no more.

    Raises RolledBack for a source that gives more than `most`.
    """
    return gathered(_pages(page, most, source))


def _pages(page: Callable[[int, int], Sequence[int]], most: int, source: str) -> Iterator[Sequence[int]]:
    came = 0
    while fresh := page(came, BATCH):
        yield fresh
        came += len(fresh)
        if came > most:
            raise RolledBack(f"{source} gives more descriptors than the {most} that it can have")


def counted(page: Callable[[int, int], Sequence[int]], total: int, source: str, first: Sequence[int] = ()) -> list[int]:
    """Returns the `total` descriptors that a source says it gives, the caller's. `page` works as for `paged`.

    first: those that came with the number; the function takes them. Raises RolledBack for another number.
    """
    return gathered(_counted(page, total, source, first))


def _counted(
    page: Callable[[int, int], Sequence[int]], total: int, source: str, first: Sequence[int]
) -> Iterator[Sequence[int]]:
    yield first
    came = len(first)
    while came < total and (fresh := page(came, BATCH)):
        yield fresh
        came += len(fresh)
    if came != total:
        raise RolledBack(f"{source} gave {came} descriptors, and said that it has {total}")


def gathered(pages: Iterable[Sequence[int]]) -> list[int]:
    """Returns the descriptors of all pages, the caller's. Those that came are closed if a page raises."""
    found: list[int] = []
    try:
        for page in pages:
            found += page
    except BaseException:
        close_all(found)
        raise
    return found


class Incoming(Struct):
    """Descriptors that come in several messages, by a key, until all have come. Thread-safe."""

    _came: dict[Hashable, list[int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, key: Hashable, fds: list[int], offset: int, total: int) -> list[int] | None:
        """Takes the descriptors of a message. Returns all `total` of them, or None before the last message.

        A message with `offset` 0 begins anew: an earlier attempt was cut off.
        Raises UsageError for a message that does not follow the one before; the descriptors stay the caller's then.
        """
        with self._lock:
            if offset == 0:
                self._drop(key)
            came = self._came.setdefault(key, [])
            if offset != len(came) or offset + len(fds) > total:
                raise UsageError(f"descriptors {offset} to {offset + len(fds)} of {total} come after {len(came)}")
            came += fds
            fds.clear()
            return self._came.pop(key) if len(came) == total else None

    def drop(self, key: Hashable) -> None:
        """Closes those that came, since the rest does not."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        close_all(self._came.pop(key, []))
