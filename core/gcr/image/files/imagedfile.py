"""A file of an image, a part of what CRIU saved of a process tree. It consists of chunks, as allocations do.

A round of a migration has files of its own: pieces of the memory of processes that ran on. No process comes from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict

from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.chunk import cut

_LONGEST = 255  # bytes of a file's name
_OF_MEMORY = "memory-"


def name_of_memory(of: str, number: int) -> str:
    """Returns the name of a piece of the memory `of` a process that ran on."""
    return f"{_OF_MEMORY}{of}-{number}"


class ImagedFile(Struct, frozen=True):
    """`sizes`: of its chunks, in bytes; empty: each chunk but the last is as large as the image's chunks are."""

    name: str
    bytes: int
    sizes: Sequence[int] = ()

    @property
    def is_of_memory(self) -> bool:
        """Returns whether it is memory of a process that ran on."""
        return self.name.startswith(_OF_MEMORY)

    def chunks(self, chunk_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields offset and size of each chunk."""
        if not self.sizes:
            return cut(self.bytes, chunk_bytes)
        return zip(accumulate(self.sizes, initial=0), self.sizes, strict=False)

    def chunk_count(self, chunk_bytes: int) -> int:
        return len(self.sizes) or chunk_count(self.bytes, chunk_bytes)

    def refuse_nonsense(self, chunk_bytes: int) -> None:
        """Raises ValueError for a name that leads out of a folder, and for sizes that are none."""
        if not 0 < len(self.name.encode()) <= _LONGEST or self.name in (".", "..") or not self.name.isprintable():
            raise ValueError("a file has no name")
        if "/" in self.name:
            raise ValueError("a file lies outside of its folder")
        if {*map(type, (self.bytes, *self.sizes))} != {int} or self.bytes < 0:
            raise ValueError("a file has no size")
        if self.sizes and (sum(self.sizes) != self.bytes or not 0 < min(self.sizes) <= max(self.sizes) <= chunk_bytes):
            raise ValueError("the chunks of a file are not its bytes")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"sizes": [*self.sizes]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        return cls(body["name"], body["bytes"], tuple(body["sizes"]))
