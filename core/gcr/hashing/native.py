"""The chunk hash on the processor: libgcr_hash.so, built from the same source as the devices' kernel.

One core hashes 7 to 18 GB/s, by what it can do (docs/hash.md). The interpreter is not held meanwhile.
"""

import ctypes
import functools
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise

from gcr import native
from gcr.hashing.chunks import DIGEST_BYTES, chunk_count
from gcr.hashing.key import HashKey

_ALIGNMENT = 16


class Isa(IntEnum):
    """The code that computes. Each kind finds the same."""

    BEST = 0
    SSE2 = 1
    AVX2 = 2
    AVX512 = 3


def hash_address(address: int, size: int, key: HashKey, chunk_bytes: int, isa: Isa = Isa.BEST) -> bytes:
    """Digests of the chunks of `size` bytes of this process's memory.

    Raises NativeMissing; ValueError for a size of chunks that there is not, or a processor without `isa`.
    """
    expanded = Aligned(key.expand(chunk_bytes))
    digests = ctypes.create_string_buffer(chunk_count(size, chunk_bytes) * DIGEST_BYTES)
    if not library().gcr_hash_memory(isa, address, size, chunk_bytes, expanded.address, digests):
        raise ValueError(f"this processor has no {isa.name}")
    return digests.raw


def hash_bytes(data: bytes | bytearray | memoryview, key: HashKey, chunk_bytes: int, isa: Isa = Isa.BEST) -> bytes:
    """The same of contiguous bytes. Raises as `hash_address` does."""
    view = memoryview(data).cast("B")
    if view.readonly:
        held = data if isinstance(data, bytes) else view.tobytes()
        return hash_address(_address_of(held), len(held), key, chunk_bytes, isa)
    if not view:
        return hash_address(0, 0, key, chunk_bytes, isa)
    held_view = (ctypes.c_char * len(view)).from_buffer(view)
    return hash_address(ctypes.addressof(held_view), len(view), key, chunk_bytes, isa)


def hash_each(pieces: Sequence[memoryview], key: HashKey, chunk_bytes: int) -> list[bytes]:
    """Digests of the chunks of each. What lies side by side in memory is one call: threads get in each other's way
    wherever the interpreter is left and entered again."""
    if any(piece.readonly or not piece for piece in pieces):
        return [hash_bytes(piece, key, chunk_bytes) for piece in pieces]
    stretches: list[tuple[int, int]] = []
    for piece in pieces:
        address, size = ctypes.addressof(ctypes.c_char.from_buffer(piece)), len(piece)
        last, before = stretches[-1] if stretches else (0, 0)
        if before and last + before == address and before % chunk_bytes == 0:
            stretches[-1] = last, before + size
        else:
            stretches.append((address, size))
    digests = b"".join(hash_address(address, size, key, chunk_bytes) for address, size in stretches)
    ends = [*accumulate((chunk_count(len(piece), chunk_bytes) * DIGEST_BYTES for piece in pieces), initial=0)]
    return [digests[begin:end] for begin, end in pairwise(ends)]


def _address_of(held: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(held), ctypes.c_void_p).value or 0


class Aligned:
    """A copy of the key where its vectors may be read."""

    def __init__(self, data: bytes) -> None:
        self._memory = ctypes.create_string_buffer(len(data) + _ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.address = -(-start // _ALIGNMENT) * _ALIGNMENT
        ctypes.memmove(self.address, data, len(data))


@functools.cache
def library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.hash_path()))
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    library.gcr_hash_memory.argtypes = [ctypes.c_int, pointer, size, ctypes.c_uint32, pointer, pointer]
    library.gcr_hash_memory.restype = ctypes.c_int
    return library
