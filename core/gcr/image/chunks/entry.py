"""Where a chunk is in a pack."""

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

BLOCK = 4096
PLACED = Struct("<32sII")  # of one chunk: name, block, bytes


class Entry(NamedTuple):
    """One chunk: where it begins, in blocks, and its size in bytes. `tag`: vouches for it if encrypted."""

    name: bytes
    block: int
    size: int
    tag: bytes = b""


def padded(size: int) -> int:
    """Up to a whole block."""
    return -(-size // BLOCK) * BLOCK


def as_stored(entries: Sequence[Entry], stored: memoryview) -> Sequence[memoryview]:
    """The whole blocks of each, which lie one behind the other."""
    ends = accumulate(padded(entry.size) for entry in entries)
    return [stored[end - padded(entry.size) : end] for entry, end in zip(entries, ends, strict=True)]


def stored_bytes(entries: Sequence[Entry]) -> int:
    """Of them all, one behind the other."""
    return sum(padded(entry.size) for entry in entries)
