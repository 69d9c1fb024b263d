"""The place of a chunk in a pack."""

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

BLOCK = 4096
MOST_BLOCKS = 1 << 32  # in a pack; no chunk begins there or behind it
PLACED = Struct("<32sII")  # of one chunk: name, block, bytes


class Entry(NamedTuple):
    """One chunk: the block where it begins, and its size in bytes. `tag`: vouches for it if it is encrypted."""

    name: bytes
    block: int
    size: int
    tag: bytes = b""


def padded(size: int) -> int:
    """Returns `size`, rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def as_stored(entries: Sequence[Entry], stored: memoryview) -> Sequence[memoryview]:
    """Returns the blocks of each chunk; in `stored` the chunks lie one behind the other."""
    ends = accumulate(padded(entry.size) for entry in entries)
    return [stored[end - padded(entry.size) : end] for entry, end in zip(entries, ends, strict=True)]


def stored_bytes(entries: Sequence[Entry]) -> int:
    """Returns how many bytes the chunks take in a pack, one behind the other."""
    return sum(padded(entry.size) for entry in entries)
