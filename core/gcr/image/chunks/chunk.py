"""Chunks: the pieces that device memory is stored in, and their names, which are hashes of what they contain.

Cut as the device hash cuts (gcr.hashing): at every multiple of the chunk size from an allocation's first byte. So what
the device says of a chunk is said of a stored one, too. A chunk's name is its BLAKE3 digest: whoever finds the name in
a store may trust that the bytes are these, whichever image or process they came from.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from gcr.hashing.chunks import CHUNK_BYTES

NAME_BYTES = 32


class Chunk(NamedTuple):
    """What an image knows of one. `digest`: by the image's key, see hashes.py."""

    name: bytes
    digest: bytes


def name_of(data: bytes | bytearray | memoryview) -> bytes:
    """The interpreter is not held meanwhile."""
    return bytes(blake3(data).digest())


@lru_cache(maxsize=64)
def name_of_zeros(size: int) -> bytes:
    """Of a chunk of `size` bytes that are all zero: it is never stored."""
    return name_of(bytes(size))


def cut(size: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Offset and length of each chunk of an allocation."""
    return ((start, min(chunk_bytes, size - start)) for start in range(0, size, chunk_bytes))
