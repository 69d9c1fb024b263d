"""BLAKE3 on the processor by libgcr_hash.so: the names of many chunks in one call, without the interpreter.

One core names 1.6 to 5 GB/s, by what it can do (docs/hash.md). Where threads return to the interpreter for each chunk,
they wait for each other.
"""

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence

from gcr.hashing.native import Isa, library

NAME_BYTES = 32


def names_within(
    memory: memoryview, starts: Sequence[int], sizes: Sequence[int], key: bytes = b"", isa: Isa = Isa.BEST
) -> bytes:
    """Returns the names of chunks of memory that may be written, NAME_BYTES each. `starts`: offsets, `sizes`: bytes.

    key: of 32 bytes; empty: names have none. Raises NativeMissing; ValueError for chunks outside the memory or of more
    than 16 MiB, or a processor without `isa`.
    """
    if len(starts) != len(sizes) or len(key) not in (0, NAME_BYTES):
        raise ValueError("not a size for each chunk, or no key")
    if starts and not 0 <= min(starts) <= max(map(int.__add__, starts, sizes)) <= len(memory):
        raise ValueError("a chunk is not within the memory")
    held = (ctypes.c_char * len(memory)).from_buffer(memory)
    address = ctypes.addressof(held)
    addresses, lengths = array("Q", map(address.__add__, starts)), array("Q", sizes)
    names = ctypes.create_string_buffer(NAME_BYTES * len(sizes))
    used = _function()(isa, addresses.buffer_info()[0], lengths.buffer_info()[0], len(sizes), key or None, names)
    if used <= 0:
        raise ValueError(f"this processor has no {isa.name}" if not used else "a chunk has more than 16 MiB")
    return names.raw


@functools.cache
def _function() -> Callable[..., int]:
    pointer = ctypes.c_void_p
    function = library().gcr_name_chunks
    function.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_uint64, ctypes.c_char_p, pointer]
    function.restype = ctypes.c_int
    return function
