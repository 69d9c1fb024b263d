"""The manifest: it says what an image is, and vouches for each of its files. It is written last.

    images/<name>.json    {"format": 1, "digest": "<BLAKE3 of the image's JSON>", "image": {…}}

A reader looks at `format` first. Format 2 has `files` as well, the part that CRIU saved. Format 3 is a training
checkpoint: it has `files` and `progress`, no processes, and no device hashes. Format 5 is a round of a migration: its
`files` are memory of processes that ran on. Another number means another layout: the reader says so, and reads nothing
else.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

from msgspec import Struct, field
from msgspec.json import format as indented
from msgspec.structs import asdict

from gcr.hashing.chunks import CHUNK_BYTES, check_chunk_bytes
from gcr.image.chunks.chunk import name_of
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.pack.format import Pack
from gcr.imageerrors import Damaged, NoSuchImage, StoreUnusable, WrongImage
from gcr.memory.layout import DamagedTable, SealedTable
from gcr.names import meant

PLAIN, WITH_FILES, OF_TRAINING, COMPRESSED, OF_ROUND = 1, 2, 3, 4, 5  # formats
SUFFIX = ".json"
_MOST = 1 << 64
_LAST_TIME = 1 << 37  # seconds since the epoch; a calendar ends with the year 9999


FIELDS = (  # of an image's JSON, in the order of the file; with files, these follow
    *("name", "cut", "created", "job", "backend", "simulated", "versions", "models", "processes", "packs", "chunks"),
    *("hashes", "bytes_total", "bytes_zero", "bytes_written", "chunk_bytes", "parent", "bytes_changed", "only_copy"),
    "timings",
)


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


class Source(Struct, frozen=True):
    """The job that an image is of. `versions`: of the programs that wrote it · `models`: of devices, by UUID.

    progress: of a training checkpoint, such as its step; else empty
    """

    job: str
    backend: str
    simulated: bool
    versions: Mapping[str, str]
    models: Mapping[str, str]
    progress: Mapping[str, int] = {}


class Costs(Struct, frozen=True, kw_only=True):
    """The bytes of an image, under the names of docs/contract.md §4. `parent`: the image it was compared with.

    bytes_stored: of those written, as they lie in the packs; None: they lie there as they are
    """

    parent: str | None = None
    bytes_total: int
    bytes_changed: int | None = None  # since the parent
    bytes_zero: int
    bytes_written: int
    bytes_stored: int | None = None

    def uncompressed(self) -> dict[str, Any]:
        """Returns the costs, by name, that images of jobs have: their packs are not compressed."""
        return {name: value for name, value in asdict(self).items() if name != "bytes_stored"}


class Beside(Struct, frozen=True):
    """Digests of the files beside the manifest: the references of the chunks, and their hashes."""

    chunks: bytes
    hashes: bytes


Part = TypeVar("Part", Source, Costs)


class Manifest(Struct, frozen=True):
    """The manifest of one image. Sizes are bytes.

    created: seconds since the epoch · timings: seconds from the request
    only_copy: its bytes were nowhere else once it was written
    """

    name: str
    cut: Cut
    created: float
    source: Source
    processes: Sequence[ImagedProcess]
    packs: Sequence[Pack]
    beside: Beside
    costs: Costs
    chunk_bytes: int = CHUNK_BYTES
    only_copy: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)
    files: Sequence[ImagedFile] = ()

    @property
    def host_bytes(self) -> int:
        """Returns the bytes of memory of processes that ran on."""
        return sum(each.bytes for each in self.files if each.is_of_memory)

    def seal(self) -> bytes:
        """Returns 32 bytes that no other image has."""
        return name_of(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Returns the file's text: the fields of source and costs stand among the others."""
        fields = _plain(asdict(self) | asdict(self.source) | asdict(self.costs) | asdict(self.beside))
        fields["processes"] = [each.to_json() for each in self.processes]
        fields["packs"] = [_plain(asdict(pack)) for pack in self.packs]
        fields["files"] = [each.to_json() for each in self.files]
        number = self._format()
        body = {name: fields[name] for name in _fields(number)}
        text = json.dumps({"format": number, "digest": _digest(body), "image": body})
        return indented(text.encode(), indent=1)  # as json.dumps would, in a fourth of the time

    def _format(self) -> int:
        if self.costs.bytes_stored is not None:
            return COMPRESSED
        if self.source.progress:
            return OF_TRAINING
        if self.files:
            return OF_ROUND if self.cut is Cut.DEVICE else WITH_FILES
        return PLAIN

    @classmethod
    def from_bytes(cls, text: bytes, path: object) -> Self:
        """Reads a manifest. `path`: names it in errors. Raises WrongImage, Damaged."""
        try:
            document = json.loads(text)
            number = document["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged.of(path, f"it is no manifest: {error}") from error
        if number not in range(PLAIN, OF_ROUND + 1):
            known = f"{PLAIN} to {OF_ROUND}"
            raise WrongImage(f"{path}: an image of format {number!r}; this gcr reads {known}", hint="a newer gcr")
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
        if unknown := {*body}.difference(_fields(document["format"])):
            raise ValueError(f"no image has a field {min(unknown)!r}")
        source = _part(Source, body)
        facts = {
            "cut": Cut(body["cut"]),
            "processes": tuple(map(ImagedProcess.from_json, body["processes"])),
            "packs": packs,
            "beside": Beside(bytes.fromhex(body["chunks"]), bytes.fromhex(body["hashes"])),
            "source": source,
            "costs": _part(Costs, body),
            "files": tuple(map(ImagedFile.from_json, body["files"])) if document["format"] != PLAIN else (),
        }
        rest = {name: value for name, value in body.items() if name in cls.__struct_fields__}
        if (document["format"] in (OF_TRAINING, COMPRESSED)) != bool(source.progress):
            raise ValueError("it is of another format")
        if (document["format"] == COMPRESSED) != ("bytes_stored" in body):
            raise ValueError("it is of another format")
        found = cls(**{**rest, **facts})
        if (document["format"] == OF_ROUND) != (found._format() == OF_ROUND):
            raise ValueError("it is of another format")
        _refuse_nonsense(found)
        return found


def _fields(number: int) -> Sequence[str]:
    """Returns the fields of an image's JSON of this format."""
    more = {
        PLAIN: (),
        WITH_FILES: ("files",),
        OF_TRAINING: ("files", "progress"),
        COMPRESSED: ("files", "progress", "bytes_stored"),
        OF_ROUND: ("files",),
    }
    return (*FIELDS, *more[number])


def _part(kind: type[Part], body: Mapping[str, Any]) -> Part:
    """Returns the part of a manifest that has some of the fields. Raises TypeError if one is missing."""
    return kind(**{name: body[name] for name in kind.__struct_fields__ if name in body})


def _refuse_nonsense(image: Manifest) -> None:
    """Raises ValueError for a manifest that makes no sense: a digest vouches only for its bytes."""
    source, costs = image.source, image.costs
    texts = [image.name, source.job, source.backend, *source.versions.values(), *source.models.values()]
    texts += source.progress
    texts += [] if costs.parent is None else [costs.parent]
    times = [image.created, *image.timings.values()]
    sizes = [costs.bytes_total, costs.bytes_zero, costs.bytes_written, image.chunk_bytes]
    sizes += [each for each in (costs.bytes_changed, costs.bytes_stored) if each is not None]
    sizes += [*source.progress.values(), *(pack.bytes for pack in image.packs)]
    for process in image.processes:
        sizes += [process.stack, process.generation, *_numbers(process.table)]
        texts += [handle.device for handle in process.table.handles]
        texts += [segment.device for segment in process.table.segments]
        _refuse_overlaps(process.table)
    if not isinstance(source.simulated, bool):
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
    _refuse_nonsense_of_files(image)


def _refuse_nonsense_of_files(image: Manifest) -> None:
    for each in image.files:
        each.refuse_nonsense(image.chunk_bytes)
    if len({each.name for each in image.files}) != len(image.files):
        raise ValueError("a file is in it twice")
    if image.source.progress and (image.cut != Cut.APP or image.processes):
        raise ValueError("it is of a training, and says that it is of processes")
    of_a_round = image.cut is Cut.DEVICE and all(each.is_of_memory for each in image.files)
    if image.files and not image.source.progress and image.cut != Cut.PROCESS and not of_a_round:
        raise ValueError("it has files of processes, and says that it has none")


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
