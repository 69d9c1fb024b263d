"""References: one record for each chunk of an image says where it is, in the order of the allocations' bytes.

    40 bytes a chunk:  name (32) | pack (u32) | block (u32)          little-endian

`pack` counts the packs that the manifest lists; ZEROS: the chunk is zero and stored nowhere. The sizes of the chunks
follow from the allocations. The manifest has the digest of the file.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence

from gcr.image.chunks.chunk import NAME_BYTES, name_of
from gcr.image.chunks.records import Records

SUFFIX = ".chunks"
ZEROS = 0xFFFFFFFF
_RECORD = struct.Struct("<32sII")
RECORD_BYTES = _RECORD.size
_PACKS = slice(NAME_BYTES // 4, None, RECORD_BYTES // 4)  # the numbers of packs, among all numbers of 32 bits


class References(Records):
    """All references of an image. `packs`, `blocks`: of each chunk."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError if a reference is cut off."""
        super().__init__(data, RECORD_BYTES)
        self.packs, self.blocks = self.column(NAME_BYTES), self.column(NAME_BYTES + 4)


def pack_into(data: bytearray, number: int, reference: tuple[bytes, int, int]) -> None:
    _RECORD.pack_into(data, number * RECORD_BYTES, *reference)


def packed(names: bytes, pack: int, blocks: Sequence[int]) -> bytes:
    """Returns the references of chunks of one pack. `names`: of the chunks, one behind the other."""
    ends = range(NAME_BYTES, (len(blocks) + 1) * NAME_BYTES, NAME_BYTES)
    each = zip(ends, blocks, strict=True)
    return b"".join([_RECORD.pack(names[end - NAME_BYTES : end], pack, block) for end, block in each])


def packs_of(data: bytes) -> "array[int]":
    """Returns the pack of each reference, or ZEROS."""
    return array("I", memoryview(data).cast("I")[_PACKS].tobytes())


def renumbered(data: bytes, numbers: Mapping[int, int]) -> bytes:
    """Returns the references with other numbers of their packs. `numbers`: the new one, by the old one."""
    if all(new == old for old, new in numbers.items()):
        return data
    known, changed = {**numbers, ZEROS: ZEROS}, bytearray(data)
    memoryview(changed).cast("I")[_PACKS] = memoryview(array("I", map(known.__getitem__, packs_of(data))))
    return bytes(changed)


def digest(data: bytes) -> bytes:
    return name_of(data)
