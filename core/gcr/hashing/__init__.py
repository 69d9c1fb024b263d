"""Chunk hashes, which compare device data on the device or on the host, with the same result.

A keyed universal hash of 128 bits. Two chunks that differ have equal hashes with probability less than 2**-121 over
the key, for any contents that were chosen without knowledge of the key. docs/hash.md has the construction, its proof
and the consequences for an image. The key is random, one for each chain of images.

Imports no vendor library and nothing outside the standard library.
"""

from gcr.hashing.chunks import CHUNK_BYTES, DIGEST_BYTES, MAX_CHUNK_BYTES, TILE_BYTES, ChunkHashes
from gcr.hashing.key import HashKey
from gcr.hashing.native import hash_address, hash_bytes, hash_each

__all__ = [
    "CHUNK_BYTES",
    "DIGEST_BYTES",
    "MAX_CHUNK_BYTES",
    "TILE_BYTES",
    "ChunkHashes",
    "HashKey",
    "hash_address",
    "hash_bytes",
    "hash_each",
]
