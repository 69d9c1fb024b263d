"""A pack: chunks in one file, written once and never changed.

    0        4096                            index             end - 4096
    | header | chunk | chunk |       …       | index           | footer |
               each at a multiple of 4096 bytes, the rest of its last block zero

    index    40 bytes a chunk, in the order they lie there:  name (32) | block (u32) | bytes (u32)
    footer   GCRPACKF | version (u32) | chunks (u32) | index at (u64) | BLAKE3 of the index (32) | BLAKE3 of these (32)

Little-endian; a block is 4096 bytes. The last 32 bytes of the footer, the pack's *seal*, vouch for every byte of the
file: for the index, and through it for each chunk; all other bytes have one value. A manifest names packs by id and
seal. While it is written a pack is called <id>.pack.new, while it is pulled <id>.pack.part.

In an encrypted store the cipher encrypts chunks and index. The chunks lie in the same places, the index is longer, and
the version differs.
"""

import re
import struct
from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct

from gcr.image.chunks.chunk import NAME_BYTES, name_of
from gcr.image.chunks.entry import BLOCK

ID = re.compile(r"[0-9a-f]{32}\Z")
SUFFIX, UNFINISHED, ARRIVING, DISTRUSTED = ".pack", ".pack.new", ".pack.part", ".pack.bad"
NOTES = ".pack.runs"  # of a pack that a pull brings: which runs of its file were compared
FILE = re.compile(r"([0-9a-f]{32})\.pack(?:\.new|\.part|\.bad|\.runs)?\Z")  # any file of the pack with this id
HEADER = struct.Struct("<8sI")
HEADER_MAGIC, FOOTER_MAGIC = b"GCRPACK\0", b"GCRPACKF"
FACTS = struct.Struct("<8sIIQ")
FOOTER = struct.Struct(FACTS.format + "32s")
GROUP_BYTES = 4 << 20  # of chunks that are handled together, or one chunk


class Pack(Struct, frozen=True):
    """A finished pack. `seal`: 32 bytes that vouch for the whole file. `bytes`: size of the file."""

    id: str
    seal: bytes
    bytes: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError. A wrong id might name a file outside the store."""
        if not ID.match(body["id"]):
            raise ValueError(f"{body['id']!r} is no id of a pack")
        if body["bytes"] < 2 * BLOCK or body["bytes"] % BLOCK:
            raise ValueError(f"no pack has {body['bytes']} bytes")
        return cls(**{**body, "seal": bytes.fromhex(body["seal"])})


class Footer(Struct, frozen=True):
    """The last block of a pack."""

    facts: bytes
    seal: bytes

    @classmethod
    def from_bytes(cls, block: bytes) -> Self:
        return cls(block[: FOOTER.size], block[FOOTER.size : FOOTER.size + NAME_BYTES])

    def is_sealed(self, seal: bytes) -> bool:
        """Returns whether this is the footer of the pack that `seal` vouches for."""
        return self.seal == seal == name_of(self.facts)

    def is_whole(self) -> bool:
        """Returns whether this is the footer of any pack."""
        return self.facts.startswith(FOOTER_MAGIC) and self.is_sealed(self.seal)

    def index_at(self) -> int:
        """Returns where the index begins, in bytes from the beginning of the file."""
        return int(FOOTER.unpack(self.facts)[3])

    def bounds(self, size: int) -> bool:
        """Returns whether a file of `size` bytes has room for all chunks, and so an index that is small beside it."""
        count = int(FOOTER.unpack(self.facts)[2])
        return (1 + count) * BLOCK <= self.index_at() and size - self.index_at() <= (3 + count // 32) * BLOCK
