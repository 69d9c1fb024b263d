"""The device hashes of an image's chunks: by them the next image of the same processes knows what need not be copied.

    images/<name>.hashes    key (32) | a digest (16) for each chunk, in the order of the references

The key was drawn for the first image of the chain (gcr.hashing.key), and each digest is that of the bytes that the
image has. Nobody needs them to read the image. The manifest has the digest of the file.
"""

from dataclasses import dataclass, field
from typing import Self

from gcr.hashing import DIGEST_BYTES, HashKey
from gcr.hashing.key import SECRET_BYTES

SUFFIX = ".hashes"


@dataclass(frozen=True, slots=True)
class ImageHashes:
    """`digests`: of all chunks, in order, in one string."""

    key: HashKey
    digests: bytes = field(repr=False)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError where something is cut off."""
        if len(data) < SECRET_BYTES or (len(data) - SECRET_BYTES) % DIGEST_BYTES:
            raise ValueError("a hash is cut off")
        return cls(HashKey(data[:SECRET_BYTES]), data[SECRET_BYTES:])

    def to_bytes(self) -> bytes:
        return self.key.secret + self.digests

    def __len__(self) -> int:
        """Chunks."""
        return len(self.digests) // DIGEST_BYTES
