"""The use of a batch of descriptors."""

from collections.abc import Callable, Sequence

from gcr.protocol.seqpacket import close_all


def consume(fds: Sequence[int], use: Callable[[Sequence[int]], object]) -> None:
    """Uses the descriptors and closes them, also where their use fails."""
    try:
        use(fds)
    finally:
        close_all(fds)
