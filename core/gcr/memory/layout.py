"""The layout of handles in host memory, the copies that move their bytes, and the sealed table of the layout.

Host memory of one device is a list of segments, thought of as one line of bytes: an *arena offset* counts from the
first byte of the first segment. Handles are packed on that line without gaps, in the order they are copied. Sizes are
bytes.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict

from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.errors import Refused
from gcr.memory.pieces import Pieces
from gcr.protocol.jsonbody import sealed_memfd
from gcr.protocol.wire import MappingRecord

TABLE_VERSION = 1
_MAGIC = b"GCRTABLE"
_DIGEST = 32


class DamagedTable(Refused):
    """A sealed table is not what was sealed, and was not used: report it."""

    code = "damaged_table"


class Segment(Struct, frozen=True, eq=False):
    """A piece of host memory, mapped at `address` in this process.

    It is equal to itself only: a later segment may get the same descriptor number and address.
    """

    fd: int
    address: int
    size: int


class Layout(Struct, frozen=True):
    """The places of handles. `offsets`: arena offset by handle id. `size`: bytes in all."""

    offsets: Mapping[int, int]
    size: int

    def of(self, ids: Iterable[int]) -> "Layout":
        """Returns the places of these handles alone, on the same line."""
        return Layout({id: self.offsets[id] for id in ids}, self.size)


class _Part(Struct, frozen=True):
    """Bytes to copy: the range and the address on the device, the arena offset, and the size."""

    range: int
    device: int
    offset: int
    size: int


class _Copy(Struct):
    """A copy in one device range and one segment; only copies in the same two may become one."""

    range: int
    segment: int
    device: int
    host: int
    size: int

    @property
    def span(self) -> Span:
        return Span(self.device, self.host, self.size)

    def goes_on_with(self, next: "_Copy") -> bool:
        return (
            self.device + self.size == next.device
            and self.host + self.size == next.host
            and self.segment == next.segment
            and self.range == next.range
        )


def pack(ranges: Sequence[DeviceRange], sizes: Mapping[int, int]) -> Layout:
    """Lays handles out back to back, in the order of the ranges: neighbours on the device stay neighbours.

    `sizes` has each wanted id. Ids of the ranges that it lacks were freed meanwhile and are left out.
    """
    offsets: dict[int, int] = {}
    end = 0
    for where in ranges:
        for id in sorted(where.offsets, key=where.offsets.__getitem__):
            if id in sizes:
                offsets[id] = end
                end += sizes[id]
    if missing := sizes.keys() - offsets.keys():
        raise ValueError(f"{len(missing)} handles lie in no range, such as {min(missing)}")
    return Layout(offsets, end)


def spans(
    ranges: Sequence[DeviceRange], sizes: Mapping[int, int], layout: Layout, segments: Sequence[Segment]
) -> list[Span]:
    """Returns the fewest copies that move each byte of `sizes` once. No copy crosses a range's or a segment's border.

    Raises ValueError when the segments are too small or a handle of the layout lies in no range.
    """
    return [each.span for each in _planned(ranges, sizes, layout, segments)]


def spans_by_segment(
    ranges: Sequence[DeviceRange], sizes: Mapping[int, int], layout: Layout, segment_sizes: Iterable[int]
) -> list[list[Span]]:
    """Returns the copies of `spans` for each segment up to the last one in use; `host` counts from its first byte.

    Raises as `spans` does.
    """
    copies = _planned(ranges, sizes, layout, [Segment(-1, 0, size) for size in segment_sizes])
    groups: list[list[Span]] = [[] for _ in range(1 + max((each.segment for each in copies), default=-1))]
    for each in copies:
        groups[each.segment].append(each.span)
    return groups


def spans_of_parts(parts: Iterable[tuple[DeviceRange, int, int, int]], segments: Sequence[Segment]) -> list[Span]:
    """Returns copies of parts, each a range, the offset in it, the arena offset and the size.

    Raises NotInPieces when the segments are too small.
    """
    placed = [_Part(id(where), where.address + at, offset, size) for where, at, offset, size in parts]
    placed.sort(key=lambda part: part.offset)
    return [each.span for each in _merged(_copies(placed, segments))]


def _planned(
    ranges: Sequence[DeviceRange], sizes: Mapping[int, int], layout: Layout, segments: Sequence[Segment]
) -> list[_Copy]:
    if layout.size > sum(segment.size for segment in segments):
        raise ValueError(f"{layout.size} bytes do not fit into {len(segments)} segments")
    where = {id: (index, each.address + at) for index, each in enumerate(ranges) for id, at in each.offsets.items()}
    offsets = layout.offsets
    if unknown := offsets.keys() - where.keys():
        raise ValueError(f"{len(unknown)} handles lie in no range, such as {min(unknown)}")
    parts = [_Part(*where[id], offsets[id], sizes[id]) for id in sorted(offsets, key=offsets.__getitem__)]
    return _merged(_copies(parts, segments))


def _copies(parts: Sequence[_Part], segments: Sequence[Segment]) -> Iterator[_Copy]:
    """Yields copies of parts, cut at the borders of segments."""
    line = Pieces.back_to_back(segment.size for segment in segments)
    for cut in line.cuts((part.offset, part.size) for part in parts):
        part = parts[cut.stretch]
        host = segments[cut.piece].address + cut.at
        yield _Copy(part.range, cut.piece, part.device + cut.done, host, cut.size)


def _merged(copies: Iterable[_Copy]) -> list[_Copy]:
    """Returns the copies, neighbours as one."""
    found: list[_Copy] = []
    for copy in copies:
        if found and found[-1].goes_on_with(copy):
            found[-1].size += copy.size
        else:
            found.append(copy)
    return found


class SealedHandle(Struct, frozen=True):
    """One handed-over allocation: what it was, on which device (UUID), and where its bytes lie."""

    spec: HandleSpec
    device: str
    offset: int  # in the line of this device's segments


class SealedSegment(Struct, frozen=True):
    """The size of a segment and the device of its bytes; segments are in the order of their descriptors."""

    device: str
    size: int


class SealedTable(Struct, frozen=True):
    """All that a restore of a process's device memory needs, besides the segments.

        0          8                  40
        | GCRTABLE | blake2b-256      | JSON ...                      the digest is over the JSON

    The device masks of a mapping count the process's own ordinals; `ordinals` gives their UUIDs.
    """

    job: str
    pid: int
    start_time: int
    transaction: int
    ordinals: Mapping[int, str]
    handles: tuple[SealedHandle, ...]
    mappings: tuple[MappingRecord, ...]
    segments: tuple[SealedSegment, ...]
    version: int = TABLE_VERSION

    @property
    def devices(self) -> frozenset[str]:
        """The devices of the bytes, also where no segment holds them."""
        return frozenset({each.device for each in self.handles} | {each.device for each in self.segments})

    def to_bytes(self) -> bytes:
        text = json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True).encode()
        return _MAGIC + _digest(text) + text

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads a table. Raises DamagedTable where a bit has changed, and for a version that this gcr does not know."""
        magic, digest, text = data[: len(_MAGIC)], data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
        if magic != _MAGIC or digest != _digest(text):
            raise DamagedTable("the sealed table of a suspended process is damaged")
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedTable(f"the sealed table of a suspended process does not parse: {error}") from error

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Reads the table that `to_memfd` wrote. Raises as `from_bytes` does, and OSError."""
        return cls.from_bytes(bytes_of_table(fd, _MAGIC))

    def to_memfd(self) -> int:
        """Returns a descriptor of the bytes, sealed against change; the caller owns it. Raises OSError."""
        return sealed_memfd("gcr-table", self.to_bytes())

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ordinals": {str(ordinal): uuid for ordinal, uuid in self.ordinals.items()},  # numbers sort otherwise
            "handles": [{**asdict(each), "spec": asdict(each.spec)} for each in self.handles],
            "mappings": [*map(asdict, self.mappings)],
            "segments": [*map(asdict, self.segments)],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Reads the result of `to_json`. Raises ValueError, TypeError, KeyError or AttributeError for any other."""
        if body["version"] != TABLE_VERSION:
            raise ValueError(f"version {body['version']}, this gcr knows {TABLE_VERSION}")
        handles = (SealedHandle(HandleSpec(**each["spec"]), each["device"], each["offset"]) for each in body["handles"])
        facts = {
            "ordinals": {int(ordinal): uuid for ordinal, uuid in body["ordinals"].items()},
            "handles": tuple(handles),
            "mappings": tuple(MappingRecord(**each) for each in body["mappings"]),
            "segments": tuple(SealedSegment(**each) for each in body["segments"]),
        }
        return cls(**{**body, **facts})


def bytes_of_table(fd: int, magic: bytes) -> bytes:
    """Returns the bytes of a file; none of one that begins otherwise, such as a segment of many GiB. Raises OSError."""
    return os.pread(fd, os.fstat(fd).st_size, 0) if os.pread(fd, len(magic), 0) == magic else b""


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST, person=b"gcr table").digest()
