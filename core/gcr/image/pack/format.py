"""A pack: chunks in one file, written once and never changed.

    0        4096                            index             end - 4096
    | header | chunk | chunk |       …       | index           | footer |
               each at a multiple of 4096 bytes, the rest of its last block zero

    index    40 bytes a chunk, in the order they lie there:  name (32) | block (u32) | bytes (u32)
    footer   GCRPACKF | version (u32) | chunks (u32) | index at (u64) | BLAKE3 of the index (32) | BLAKE3 of these (32)

Little-endian; a block is 4096 bytes. So the last 32 bytes of the footer, the pack's *seal*, vouch for every byte of the
file: for the index, by the index for each chunk, and what else there is has one value. A manifest names packs by id and
seal. While it is written a pack is called <id>.pack.new, while it is pulled <id>.pack.part.

In an encrypted store chunks and index are what the store's cipher makes of them; they lie in the same places, but that
the index is longer, and the version says so.
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
FILE = re.compile(r"([0-9a-f]{32})\.pack(?:\.new|\.part|\.bad)?\Z")  # any of these, of the pack with this id
HEADER = struct.Struct("<8sI")
HEADER_MAGIC, FOOTER_MAGIC = b"GCRPACK\0", b"GCRPACKF"
FACTS = struct.Struct("<8sIIQ")
FOOTER = struct.Struct(FACTS.format + "32s")
GROUP_BYTES = 4 << 20  # of chunks that are named and written, or read and compared, at once; or one chunk


class Pack(Struct, frozen=True):
    """A finished one. `seal`: 32 bytes that vouch for the whole file. `bytes`: of the file."""

    id: str
    seal: bytes
    bytes: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError. What is no id would name a file anywhere."""
        if not ID.match(body["id"]):
            raise ValueError(f"{body['id']!r} is no id of a pack")
        if body["bytes"] < 2 * BLOCK or body["bytes"] % BLOCK:
            raise ValueError(f"no pack has {body['bytes']} bytes")
        return cls(**{**body, "seal": bytes.fromhex(body["seal"])})


class Footer(Struct, frozen=True):
    """The last block of a pack, as it says of itself."""

    facts: bytes
    seal: bytes

    @classmethod
    def from_bytes(cls, block: bytes) -> Self:
        return cls(block[: FOOTER.size], block[FOOTER.size : FOOTER.size + NAME_BYTES])

    def is_sealed(self, seal: bytes) -> bool:
        """It is that of the pack that `seal` vouches for."""
        return self.seal == seal == name_of(self.facts)

    def is_whole(self) -> bool:
        """It is that of some pack."""
        return self.facts.startswith(FOOTER_MAGIC) and self.is_sealed(self.seal)

    def index_at(self) -> int:
        """Bytes from the beginning of the file."""
        return int(FOOTER.unpack(self.facts)[3])

    def bounds(self, size: int) -> bool:
        """A file of so many bytes has a block for the header and each chunk: so its index is a small part of it."""
        count = int(FOOTER.unpack(self.facts)[2])
        return (1 + count) * BLOCK <= self.index_at() and size - self.index_at() <= (3 + count // 32) * BLOCK
