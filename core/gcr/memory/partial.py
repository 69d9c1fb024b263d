"""A copy for an image, which may lack the bytes that the parent image has, or names them as that image does.

A restore from it is refused: it is no sealed table. It and the segments go to the image helper alone, which takes the
missing bytes from the parent.

    0          8                  40                48
    | GCRPARTS | blake2b-256      | length (u64)    | sealed table | a byte for each chunk, by `Where`

The digest is over all that follows it; the chunks are in the order of the table's handles. Little-endian.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Self

from msgspec import Struct

from gcr.hashing import CHUNK_BYTES
from gcr.hashing.chunks import chunk_count
from gcr.memory.layout import DamagedTable, SealedSegment, SealedTable, bytes_of_table
from gcr.protocol.jsonbody import sealed_memfd

_MAGIC = b"GCRPARTS"
_DIGEST = 32
_LENGTH = struct.Struct("<Q")


class Where(IntEnum):
    """The place of a chunk's bytes."""

    PARENT = 0  # in the parent image; of a whole copy in the segments as well, and the image takes the parent's name
    HERE = 1  # in the segments
    BOTH = 2  # in the segments, and the device's hash says that they are the parent's


class PartialTable(Struct, frozen=True):
    """A sealed table, and for each handle a byte for each chunk, a `Where`."""

    table: SealedTable
    chunks: Mapping[int, bytes]

    @property
    def segments(self) -> Sequence[SealedSegment]:
        return self.table.segments

    @classmethod
    def whole(cls, table: SealedTable) -> Self:
        """Returns the table of a copy that has all bytes."""
        return cls(table, {each.spec.id: everywhere(each.spec.size) for each in table.handles})

    def to_memfd(self) -> int:
        """Returns a descriptor of the bytes, sealed against change; the caller owns it. Raises OSError."""
        table = self.table.to_bytes()
        body = _LENGTH.pack(len(table)) + table + b"".join(self.chunks[each.spec.id] for each in self.table.handles)
        return sealed_memfd("gcr-parts", _MAGIC + _digest(body) + body)

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Reads a partial table. Raises DamagedTable where a bit has changed, and OSError."""
        data = bytes_of_table(fd, _MAGIC)
        magic, digest, body = data[: len(_MAGIC)], data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
        if magic != _MAGIC or digest != _digest(body):
            raise DamagedTable("the table of a copy for an image is damaged")
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        table, at, chunks = SealedTable.from_bytes(body[_LENGTH.size : end]), end, {}
        for each in table.handles:
            count = chunk_count(each.spec.size, CHUNK_BYTES)
            chunks[each.spec.id] = body[at : at + count]
            at += count
        if at != len(body):
            raise DamagedTable("the table of a copy for an image says something else of its chunks")
        return cls(table, chunks)


def everywhere(size: int) -> bytes:
    """Returns the chunks of an allocation of `size` bytes that the segments have whole."""
    return bytes([Where.HERE]) * chunk_count(size, CHUNK_BYTES)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST, person=b"gcr parts").digest()
