"""Handles and their descriptors, a batch at a time."""

from collections.abc import Callable, Iterator, Sequence

from gcr.protocol.seqpacket import close_all


def batched(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yields the ids in order, at most `size` at a time."""
    return (ids[first : first + size] for first in range(0, len(ids), size))


def consume(fds: Sequence[int], use: Callable[[Sequence[int]], object]) -> None:
    """Uses the descriptors and closes them, also where their use fails."""
    try:
        use(fds)
    finally:
        close_all(fds)
