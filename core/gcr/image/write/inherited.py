"""Chunks that an image has as its parent has them: it takes the parent's references, a run at a time.

No chunk of such a run is looked at. When the parent was read, each of its references was compared with the packs, under
the lock of the store that the writer holds until the image is there (parent.py).
"""

from array import array
from collections.abc import Sequence

from msgspec import Struct

from gcr.hashing import DIGEST_BYTES
from gcr.image.chunks.records import Records
from gcr.image.files.references import ZEROS, packs_of
from gcr.image.pack.format import Pack


class Allocation(Struct, frozen=True):
    """An allocation of the parent. `references`, `digests`: of its chunks, in order, as in the files of an image.

    packs: as the references count them
    """

    size: int
    references: Records
    digests: bytes
    packs: Sequence[Pack]


class Inherited(Struct, frozen=True):
    """The chunks from `first` up to `end` of an allocation: they are those of the parent's allocation there."""

    of: Allocation
    first: int
    end: int

    @property
    def references(self) -> bytes:
        return self.of.references.packed(self.first, self.end)

    @property
    def digests(self) -> bytes:
        return self.of.digests[self.first * DIGEST_BYTES : self.end * DIGEST_BYTES]

    @property
    def packs(self) -> "array[int]":
        """Returns the pack of each chunk, as the parent counts them, or ZEROS."""
        return packs_of(self.references)

    def size(self, chunk_bytes: int) -> int:
        """Returns the bytes of the chunks."""
        return min(self.end * chunk_bytes, self.of.size) - self.first * chunk_bytes

    def zeros(self, chunk_bytes: int) -> int:
        """Returns the bytes of the chunks that are zero."""
        packs = self.packs
        missing = (self.end - self.first) * chunk_bytes - self.size(chunk_bytes)  # of the last chunk
        return packs.count(ZEROS) * chunk_bytes - (missing if packs[-1] == ZEROS else 0)
