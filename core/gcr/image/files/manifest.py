"""The manifest: it says what an image is, and vouches for each of its files. It is written last.

    images/<name>.json    {"format": 1, "digest": "<BLAKE3 of the image's JSON>", "image": {…}}

A reader looks at `format` first. Another number means another layout: the reader says so, and reads nothing else.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import asdict

from gcr.errors import Damaged, NoSuchImage, StoreUnusable, WrongImage
from gcr.hashing.chunks import CHUNK_BYTES, check_chunk_bytes
from gcr.image.chunks.chunk import name_of
from gcr.image.pack.format import Pack
from gcr.memory.layout import DamagedTable, SealedTable
from gcr.names import meant

FORMAT = 1
SUFFIX = ".json"
_MOST = 1 << 64
_LAST_TIME = 1 << 37  # seconds since the epoch; a calendar ends with the year 9999
COSTS = ("parent", "bytes_total", "bytes_changed", "bytes_zero", "bytes_written")


class Cut(StrEnum):
    """The instant that an image shows; it decides which processes can come back from the image."""

    DEVICE = "device"  # device memory alone: only the process that is still suspended at this instant
    PROCESS = "process"  # the whole process, which CRIU saved in the same stop
    APP = "app"  # device memory of a program that rebuilds the rest by itself


class ImagedProcess(Struct, frozen=True):
    """A process of an image. `table`: its memory and devices, in the order of the image's references."""

    table: SealedTable
    stack: int  # with pid and start time in the table: its identity, see gcr.processes
    generation: int  # of its allocations; its agent counts it

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"table": self.table.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        return cls(SealedTable.from_json(body["table"]), body["stack"], body["generation"])


class Manifest(Struct, frozen=True):
    """The manifest of one image: one field for each of its JSON. Sizes are bytes.

    created: seconds since the epoch · chunks, hashes: digests of the files of these names
    only_copy: its bytes were nowhere else once it was written · models: by device UUID
    parent: the image that this one was compared with · timings: seconds from the request
    """

    name: str
    cut: Cut
    created: float
    job: str
    backend: str
    simulated: bool
    versions: Mapping[str, str]
    models: Mapping[str, str]
    processes: Sequence[ImagedProcess]
    packs: Sequence[Pack]
    chunks: bytes
    hashes: bytes
    bytes_total: int
    bytes_zero: int
    bytes_written: int
    chunk_bytes: int = CHUNK_BYTES
    parent: str | None = None
    bytes_changed: int | None = None  # since the parent
    only_copy: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)

    def costs(self) -> dict[str, Any]:
        """Returns the bytes, and the image that they are compared with, under the names of docs/contract.md §4."""
        return {name: getattr(self, name) for name in COSTS}

    def seal(self) -> bytes:
        """Returns 32 bytes that no other image has."""
        return name_of(self.to_bytes())

    def to_bytes(self) -> bytes:
        processes = [each.to_json() for each in self.processes]
        body = _plain(asdict(self)) | {"processes": processes, "packs": [_plain(asdict(pack)) for pack in self.packs]}
        return json.dumps({"format": FORMAT, "digest": _digest(body), "image": body}, indent=1).encode()

    @classmethod
    def from_bytes(cls, text: bytes, path: object) -> Self:
        """Reads a manifest. `path`: names it in errors. Raises WrongImage, Damaged."""
        try:
            document = json.loads(text)
            number = document["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged.of(path, f"it is no manifest: {error}") from error
        if number != FORMAT:
            raise WrongImage(f"{path}: an image of format {number!r}; this gcr reads {FORMAT}", hint="a newer gcr")
        try:
            return cls._from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DamagedTable) as error:
            raise Damaged.of(path, f"it is not what was written: {error}") from error

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        body = document["image"]
        if document["digest"] != _digest(body):
            raise ValueError("the digest is wrong")
        packs = tuple(map(Pack.from_json, body["packs"]))
        if len({pack.id for pack in packs}) != len(packs):
            raise ValueError("it contradicts itself")
        facts = {
            "cut": Cut(body["cut"]),
            "processes": tuple(map(ImagedProcess.from_json, body["processes"])),
            "packs": packs,
            "chunks": bytes.fromhex(body["chunks"]),
            "hashes": bytes.fromhex(body["hashes"]),
        }
        found = cls(**{**body, **facts})
        _refuse_nonsense(found)
        return found


def _refuse_nonsense(image: Manifest) -> None:
    """Raises ValueError for a manifest that makes no sense: a digest vouches only for its bytes."""
    texts = [image.name, image.job, image.backend, *image.versions.values(), *image.models.values()]
    texts += [] if image.parent is None else [image.parent]
    times = [image.created, *image.timings.values()]
    sizes = [image.bytes_total, image.bytes_zero, image.bytes_written, image.chunk_bytes]
    sizes += [] if image.bytes_changed is None else [image.bytes_changed]
    sizes += [pack.bytes for pack in image.packs]
    for process in image.processes:
        sizes += [process.stack, process.generation, *_numbers(process.table)]
        texts += [handle.device for handle in process.table.handles]
        texts += [segment.device for segment in process.table.segments]
        _refuse_overlaps(process.table)
    if not isinstance(image.simulated, bool):
        raise ValueError("what says whether it is simulated does not")
    if not all(isinstance(each, str) and each.isprintable() for each in {*texts}):
        raise ValueError("a name is no text")  # characters that cannot be printed may command a terminal
    if {*map(type, sizes)} != {int} or not 0 <= min(sizes) <= max(sizes) < _MOST:
        raise ValueError("a size or a number is none")
    check_chunk_bytes(image.chunk_bytes)
    if not all(type(each) in (int, float) and 0 <= each < _LAST_TIME for each in times):
        raise ValueError("a time is none")
    if len({process.table.pid for process in image.processes}) != len(image.processes):
        raise ValueError("a process is in it twice")


def _refuse_overlaps(table: SealedTable) -> None:
    """Raises ValueError if two allocations share a byte; TypeError."""
    ends: dict[str, int] = {}
    for handle in sorted(table.handles, key=lambda each: each.offset):
        if handle.offset < ends.get(handle.device, 0):
            raise ValueError("two allocations have a byte in common")
        ends[handle.device] = handle.offset + handle.spec.size


def _numbers(table: SealedTable) -> Iterator[int]:
    yield from (table.pid, table.start_time, table.transaction)
    for handle in table.handles:
        yield from (handle.offset, *asdict(handle.spec).values())
    for mapping in table.mappings:
        yield from asdict(mapping).values()
    yield from (segment.size for segment in table.segments)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


def _digest(body: object) -> str:
    return name_of(json.dumps(body, sort_keys=True).encode()).hex()


def none_called(name: str, names: Callable[[], Iterable[str]], store: Path) -> NoSuchImage:
    """Returns the error for a missing image; it suggests a similar name if `names` can be asked."""
    try:
        near = meant(name, names())
    except StoreUnusable:
        near = ""
    return NoSuchImage(f"no image {name!r}{near}", hint=f"gcr images {at(store)}")


def at(store: Path) -> str:
    """Returns the option that leads a command to this store."""
    return f"--store {shlex.quote(str(store))}"
