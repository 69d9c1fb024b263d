"""Where the chunks of an image are: one record for each, in the order of its allocations and of their bytes.

    40 bytes a chunk:  name (32) | pack (u32) | block (u32)          little-endian

`pack` counts the packs that the manifest lists; ZEROS: the chunk is zero and stored nowhere. The sizes follow from the
allocations. The manifest has the digest of the file.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import NamedTuple

from gcr.image.chunks import name_of

SUFFIX = ".chunks"
ZEROS = 0xFFFFFFFF
_RECORD = struct.Struct("<32sII")
RECORD_BYTES = _RECORD.size


class Reference(NamedTuple):
    name: bytes
    pack: int
    block: int


def to_bytes(references: Iterable[tuple[bytes, int, int]]) -> bytes:
    return b"".join(starmap(_RECORD.pack, references))


def from_bytes(data: bytes) -> Sequence[Reference]:
    """Raises ValueError where a record is cut off."""
    if len(data) % _RECORD.size:
        raise ValueError("a reference is cut off")
    return [*map(Reference._make, _RECORD.iter_unpack(data))]


def digest(data: bytes) -> bytes:
    return name_of(data)
