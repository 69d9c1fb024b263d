"""The device hashes of an image's chunks: they show the next image of the same processes which chunks have not changed.

    images/<name>.hashes    key (32) | a digest (16) for each chunk, in the order of the references

The key was drawn for the first image of the chain (gcr.hashing.key). Each digest is that of the bytes in the image. The
image can be read without this file. The manifest has the digest of the file. A training checkpoint has no digests.
"""

from dataclasses import dataclass, field
from typing import Self

from gcr.hashing import DIGEST_BYTES, HashKey
from gcr.hashing.key import SECRET_BYTES

SUFFIX = ".hashes"


@dataclass(frozen=True, slots=True)
class ImageHashes:
    """The hashes of one image. `digests`: those of all chunks, in order, in one string."""

    key: HashKey
    digests: bytes = field(repr=False)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError if a hash is cut off."""
        if len(data) < SECRET_BYTES or (len(data) - SECRET_BYTES) % DIGEST_BYTES:
            raise ValueError("a hash is cut off")
        return cls(HashKey(data[:SECRET_BYTES]), data[SECRET_BYTES:])

    def to_bytes(self) -> bytes:
        return self.key.secret + self.digests

    def __len__(self) -> int:
        """Returns the number of chunks."""
        return len(self.digests) // DIGEST_BYTES
