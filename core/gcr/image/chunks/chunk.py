"""Chunks: the pieces that device memory is stored in, and their names, which are hashes of their bytes.

An allocation is cut at every multiple of the chunk size from its first byte, as the device hash cuts it (gcr.hashing).
So the device's hash of a chunk is also that of the stored chunk. A chunk's name is its BLAKE3 digest: equal names mean
equal bytes, whichever image or process the chunk came from.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from gcr.hashing.chunks import CHUNK_BYTES

NAME_BYTES = 32


class Chunk(NamedTuple):
    """One chunk of an image. `digest`: its device hash with the image's key, see files/hashes.py."""

    name: bytes
    digest: bytes


def name_of(data: bytes | bytearray | memoryview) -> bytes:
    """Returns the BLAKE3 digest, 32 bytes; other threads run meanwhile."""
    return bytes(blake3(data).digest())


def names_of(memory: memoryview, starts: Sequence[int], sizes: Sequence[int], key: bytes = b"") -> bytes:
    """Returns the names of chunks of some memory, one behind the other; other threads run meanwhile.

    starts: offsets of the chunks in the memory · sizes: their bytes · key: of an encrypted store
    """
    pieces = (memory[start : start + size] for start, size in zip(starts, sizes, strict=True))
    return b"".join(blake3(piece, key=key).digest() if key else name_of(piece) for piece in pieces)


@lru_cache(maxsize=64)
def name_of_zeros(size: int) -> bytes:
    """Returns the name of a chunk of `size` zeros, which is never stored."""
    return name_of(bytes(size))


def cut(size: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Returns offset and length of each chunk of an allocation of `size` bytes."""
    return ((start, min(chunk_bytes, size - start)) for start in range(0, size, chunk_bytes))
