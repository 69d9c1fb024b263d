"""Digests of what an image has of a process: by them a worker sees which chunks need not be copied for the next image.

They cross sockets in a sealed memfd, for they are 8 MiB for 128 GiB:

    GCRBASE1 | key (32) | for each allocation: id (u64), size (u64), its digests      little-endian
"""

import os
import struct
from collections.abc import Mapping
from typing import Self

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, HashKey
from gcr.hashing.chunks import chunk_count
from gcr.hashing.key import SECRET_BYTES
from gcr.protocol.jsonbody import sealed_memfd

_MAGIC = b"GCRBASE1"
_ALLOCATION = struct.Struct("<QQ")


class Baseline(Struct, frozen=True):
    """`allocations`: by id, size and digests. An id says where to look; equal digests say that bytes are equal.

    whole: a copy that is compared with it gets every byte all the same; not in the memfd
    """

    key: HashKey
    allocations: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    whole: bool = False

    def digests(self, id: int, size: int) -> bytes | None:
        """Returns the digests of an allocation of this size; None where the image has none such."""
        known = self.allocations.get(id)
        return known[1] if known and known[0] == size else None

    def to_memfd(self) -> int:
        """A descriptor of the bytes, sealed against every change; the caller owns it. Raises OSError."""
        parts = [_MAGIC, self.key.secret]
        for id, (size, digests) in self.allocations.items():
            parts += [_ALLOCATION.pack(id, size), digests]
        return sealed_memfd("gcr-baseline", b"".join(parts))

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Raises UsageError for what `to_memfd` did not make, OSError."""
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        at = len(_MAGIC) + SECRET_BYTES
        if data[: len(_MAGIC)] != _MAGIC or len(data) < at:
            raise UsageError("that is no baseline")
        found: dict[int, tuple[int, bytes]] = {}
        try:
            while at < len(data):
                id, size = _ALLOCATION.unpack_from(data, at)
                at += _ALLOCATION.size
                length = chunk_count(size, CHUNK_BYTES) * DIGEST_BYTES
                found[id] = size, data[at : at + length]
                at += length
        except struct.error as error:
            raise UsageError(f"a baseline that is cut off: {error}") from error
        if at != len(data):
            raise UsageError("a baseline that is cut off")
        return cls(HashKey(data[len(_MAGIC) :][:SECRET_BYTES]), found)
