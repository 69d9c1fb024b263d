"""Cuts allocations into chunks; the hashes of chunks.

A chunk begins at every multiple of the chunk size from an allocation's first byte, and the last one ends with the
allocation. So the hashes of an allocation do not depend on what lies beside it. A chunk's length is part of its hash.
Sizes are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TILE_BYTES = 32 << 10
CHUNK_BYTES = 256 << 10
MAX_CHUNK_BYTES = 16 << 20
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ChunkHashes:
    """The digests of each allocation's chunks, by id, in order, DIGEST_BYTES each, in one string."""

    chunk_bytes: int
    digests: Mapping[int, bytes]
    on_device: bool = field(default=False, compare=False)  # where they were computed; the values are the same


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Raises ValueError unless it is a multiple of TILE_BYTES, from one to MAX_CHUNK_BYTES."""
    if chunk_bytes % TILE_BYTES or not TILE_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise ValueError(f"chunks of {chunk_bytes} bytes: not a multiple of {TILE_BYTES} up to {MAX_CHUNK_BYTES}")


def chunk_count(size: int, chunk_bytes: int) -> int:
    return -(-size // chunk_bytes)
