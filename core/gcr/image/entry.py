"""Where a chunk is in a pack."""

from typing import NamedTuple

BLOCK = 4096


class Entry(NamedTuple):
    """One chunk: where it begins, in blocks, and its size in bytes. `tag`: vouches for it if encrypted."""

    name: bytes
    block: int
    size: int
    tag: bytes = b""


def padded(size: int) -> int:
    """Up to a whole block."""
    return -(-size // BLOCK) * BLOCK
