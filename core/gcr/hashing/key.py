"""The key of a chain of images, and what it expands to.

Expanded with SHAKE-256 of a label and the 32 secret bytes; the output is cut, in order, into (words are 32 bits,
little-endian; W(c) = 256 * c / TILE_BYTES + 8 for chunks of c bytes)

    264 words          level 1: the NH key of every lane; the last two are not used
    18 x 64 bits       level 3: nine coefficients for each half of the digest, reduced modulo 2**61 - 1
    W(c) words         level 2: the NH key of the whole chunk; the last two are not used

so keys for smaller chunks are prefixes of those for larger ones. The kernel reads it in this form.
"""

import hashlib
import os
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from gcr.hashing.chunks import TILE_BYTES, check_chunk_bytes

SECRET_BYTES = 32
PRIME = (1 << 61) - 1
LANE_KEY_BYTES = 4 * 264
COEFFICIENTS = 18
LEVEL_2_BYTES_PER_TILE = 4 * 256
LEVEL_2_EXTRA_BYTES = 4 * 8

_LABEL = b"gcr chunk hash 1\0"


@dataclass(frozen=True, slots=True)
class HashKey:
    """32 secret bytes. With them one can make chunks that collide, so they are not shown."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a hash key has {SECRET_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def random(cls) -> Self:
        return cls(os.urandom(SECRET_BYTES))

    def expand(self, chunk_bytes: int) -> bytes:
        """Returns what kernel and host library read, for chunks of that size. Raises ValueError for other sizes."""
        check_chunk_bytes(chunk_bytes)
        return _expand(self.secret, chunk_bytes)


@lru_cache(maxsize=4)
def _expand(secret: bytes, chunk_bytes: int) -> bytes:
    level_3 = 8 * COEFFICIENTS
    level_2 = chunk_bytes // TILE_BYTES * LEVEL_2_BYTES_PER_TILE + LEVEL_2_EXTRA_BYTES
    stream = hashlib.shake_256(_LABEL + secret).digest(LANE_KEY_BYTES + level_3 + level_2)
    words = struct.unpack_from(f"<{COEFFICIENTS}Q", stream, LANE_KEY_BYTES)
    coefficients = struct.pack(f"<{COEFFICIENTS}Q", *(word % PRIME for word in words))
    return stream[:LANE_KEY_BYTES] + coefficients + stream[LANE_KEY_BYTES + level_3 :]
