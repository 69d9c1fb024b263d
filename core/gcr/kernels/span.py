"""A range of bytes of a file. Reads never leave it, and none is larger than `LARGEST`."""

import io
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from msgspec import Struct

from gcr.kernels.errors import FileTooLarge, MalformedFile

LARGEST = 256 << 20  # bytes of one image, which is held in memory as a whole
_STEP = 64 << 10


class Span(Struct, frozen=True):
    """`start` and `size` are bytes of `stream`; `place` is how people find it in the file."""

    stream: BinaryIO
    start: int
    size: int
    place: str = ""

    @classmethod
    def of(cls, content: bytes, place: str) -> "Span":
        return cls(io.BytesIO(content), 0, len(content), place)

    def malformed(self, what: str) -> MalformedFile:
        return MalformedFile(f"{self.place}: {what}" if self.place else what)

    def part(self, offset: int, size: int, place: str | int | None = None) -> "Span":
        """Raises MalformedFile where that is not inside."""
        if min(offset, size) < 0 or offset + size > self.size:
            raise self.malformed(f"{size} bytes at offset {offset} are outside of its {self.size} bytes")
        return Span(self.stream, self.start + offset, size, self._within(place))

    def read(self, offset: int, size: int) -> bytes:
        inner = self.part(offset, size)
        if size > LARGEST:
            raise FileTooLarge(f"{self.place or 'the file'}: {size} bytes in one piece, the limit is {LARGEST}")
        self.stream.seek(inner.start)
        found = self.stream.read(size)
        if len(found) != size:
            raise self.malformed("the file became shorter while it was read")
        return found

    def whole(self) -> bytes:
        return self.read(0, self.size)

    def head(self, size: int) -> bytes:
        """The first bytes, fewer where there are fewer."""
        return self.read(0, min(size, self.size))

    def fields(self, layout: struct.Struct, offset: int = 0) -> tuple[Any, ...]:
        return layout.unpack(self.read(offset, layout.size))

    def records(self, layout: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """All of it as a table; a last piece that is too short is ignored."""
        content = self.whole()
        return layout.iter_unpack(content[: len(content) // layout.size * layout.size])

    def skip_zeros(self, offset: int) -> int:
        """Offset of the first byte from `offset` on that is not zero; `size` if there is none."""
        while offset < self.size:
            chunk = self.read(offset, min(_STEP, self.size - offset))
            rest = chunk.lstrip(b"\0")
            if rest:
                return offset + len(chunk) - len(rest)
            offset += len(chunk)
        return self.size

    def _within(self, place: str | int | None) -> str:
        return self.place if place is None else f"{self.place}/{place}".lstrip("/")
