"""Chunks: the pieces that device memory is stored in, and their names, which are hashes of their bytes.

An allocation is cut at every multiple of the chunk size from its first byte, as the device hash cuts it (gcr.hashing).
So the device's hash of a chunk is also that of the stored chunk. A chunk's name is its BLAKE3 digest: equal names mean
equal bytes, whichever image or process the chunk came from.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from blake3 import blake3

from gcr.hashing.chunks import CHUNK_BYTES

NAME_BYTES = 32

_FEW = 1 << 20  # bytes; to compare fewer takes less time than to wait for the interpreter's lock once more
_ALONE, _BESIDE = ctypes.PyDLL(None).memcmp, ctypes.CDLL(None).memcmp  # with that lock, and without it
_ALONE.argtypes = _BESIDE.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Chunk(NamedTuple):
    """One chunk of an image. `digest`: its device hash with the image's key, see files/hashes.py."""

    name: bytes
    digest: bytes


def name_of(data: bytes | bytearray | memoryview) -> bytes:
    """Returns the BLAKE3 digest, 32 bytes; other threads run meanwhile."""
    return bytes(blake3(data).digest())


@lru_cache(maxsize=64)
def name_of_zeros(size: int) -> bytes:
    """Returns the name of a chunk of `size` zeros, which is never stored."""
    return name_of(bytes(size))


def names_of(
    memory: memoryview,
    starts: Sequence[int],
    sizes: Sequence[int],
    name: Callable[[memoryview], bytes] = name_of,
    of_zeros: Callable[[int], bytes] = name_of_zeros,
) -> bytes:
    """Returns the names of chunks of some memory, one behind the other; other threads run meanwhile.

    Zeros are found 10 times as fast as they are named. If all is zero that is one step for all chunks, and else one for
    each: between two steps a thread waits for its turn in the interpreter.
    starts: offsets of the chunks in the memory · sizes: their bytes · name, of_zeros: those of an encrypted store
    """
    if _is_zero(memory):
        return b"".join(map(of_zeros, sizes))
    pieces = (memory[start : start + size] for start, size in zip(starts, sizes, strict=True))
    return b"".join(of_zeros(len(piece)) if _is_zero(piece) else name(piece) for piece in pieces)


def _is_zero(memory: memoryview) -> bool:
    """Returns whether all bytes are zero. It does not look at memory that may not be written, nor at none."""
    if memory.readonly or not memory or memory[0]:
        return False
    first, compare = ctypes.addressof(ctypes.c_char.from_buffer(memory)), _ALONE if len(memory) < _FEW else _BESIDE
    return not compare(first, first + 1, len(memory) - 1)  # each byte equals the one before it


def cut(size: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Returns offset and length of each chunk of an allocation of `size` bytes."""
    return ((start, min(chunk_bytes, size - start)) for start in range(0, size, chunk_bytes))
