"""References: one record for each chunk of an image says where it is, in the order of the allocations' bytes.

    40 bytes a chunk:  name (32) | pack (u32) | block (u32)          little-endian

`pack` counts the packs that the manifest lists; ZEROS: the chunk is zero and stored nowhere. The sizes of the chunks
follow from the allocations. The manifest has the digest of the file.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gcr.image.chunks.chunk import name_of

SUFFIX = ".chunks"
ZEROS = 0xFFFFFFFF
_RECORD = struct.Struct("<32sII")
RECORD_BYTES = _RECORD.size


class Reference(NamedTuple):
    name: bytes
    pack: int
    block: int


def pack_into(data: bytearray, number: int, reference: tuple[bytes, int, int]) -> None:
    _RECORD.pack_into(data, number * RECORD_BYTES, *reference)


def from_bytes(data: bytes) -> Sequence[Reference]:
    """Raises ValueError if a record is cut off."""
    if len(data) % _RECORD.size:
        raise ValueError("a reference is cut off")
    return [*each_of(data)]


def each_of(data: bytes) -> Iterator[Reference]:
    """Yields the references one by one; `data` has whole records."""
    return map(Reference._make, _RECORD.iter_unpack(data))


def digest(data: bytes) -> bytes:
    return name_of(data)
