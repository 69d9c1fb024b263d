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
_BYTE = 0xFF  # a number below is one byte, with zeros behind it; ZEROS has it in all of its bytes
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


def counted(data: bytes, numbers: Mapping[int, int], other: int) -> bytes:
    """Returns the references with other numbers of their packs, where any number may stand before.

    numbers: the new one, by the old one · other: the new one of all that `numbers` lacks. ZEROS stay.
    """
    changed, low = bytearray(data), data[NAME_BYTES::RECORD_BYTES]
    high = low.translate(bytes(_BYTE) + b"\xff")
    alike = all(data[NAME_BYTES + at :: RECORD_BYTES] == high for at in (1, 2, 3))
    if alike and max([other, *numbers, *numbers.values()]) < _BYTE:  # nearly always: then it takes a tenth of the time
        new = bytes(numbers.get(old, other) for old in range(_BYTE))
        changed[NAME_BYTES::RECORD_BYTES] = low.translate(new + b"\xff")
    else:
        known = {**numbers, ZEROS: ZEROS}
        found = array("I", [known.get(old, other) for old in packs_of(data)])
        memoryview(changed).cast("I")[_PACKS] = memoryview(found)
    return bytes(changed)


def digest(data: bytes) -> bytes:
    return name_of(data)
