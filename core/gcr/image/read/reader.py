"""Reads an image. No byte is handed on before its chunk was compared with its name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from gcr.errors import UsageError
from gcr.hashing.chunks import chunk_count
from gcr.image.chunks.entry import padded
from gcr.image.chunks.windows import ImagedLine, LineKey, lines_of
from gcr.image.disk.bounce import clear
from gcr.image.disk.failing import usable
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS
from gcr.image.files.smallfiles import files_of
from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.fetching import GROUP_BYTES, Call, Fetcher, Group, Into
from gcr.image.read.filepart import FilePart
from gcr.image.read.places import Part, Places
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

Span = tuple[int, int]  # begin and end
Wanted = tuple[Part, int]  # chunks, and where they go in the target


@dataclass(slots=True)
class ImageReader:
    """Keeps the files of an image within the `with` block. Raises Damaged, WrongImage, NoSuchImage, StoreUnusable."""

    store: Store
    name: str
    threads: int = 8
    came: Callable[[int], object] = lambda _bytes: None  # called with bytes that were read, on any thread
    manifest: Manifest = field(init=False)
    lines: Mapping[LineKey, ImagedLine] = field(init=False)
    files: Mapping[str, tuple[int, ImagedFile]] = field(init=False)  # by name, with the reference of the first chunk
    _packs: list[PackReader] = field(default_factory=list)
    _places: Places = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack)
    _fetcher: Fetcher = field(init=False)

    def __enter__(self) -> Self:
        with ExitStack() as begun, usable(self.store.path):
            begun.enter_context(self.store.used())
            self.manifest = self.store.images.manifest(self.name)
            tables = (process.table for process in self.manifest.processes)
            self.lines = lines_of(tables, self.manifest.chunk_bytes)
            self.files = files_of(self.manifest)
            references = self.store.images.references(self.manifest)
            self._packs = [self.store.packs.reader(pack) for pack in self.manifest.packs]
            self._places = Places(self.store, self.manifest, references, self._packs)
            most = max(GROUP_BYTES, padded(self.manifest.chunk_bytes))
            self._fetcher = begun.enter_context(Fetcher(self.threads, most, self._distrust))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, pid: int, device: str, offset: int, target: memoryview) -> None:
        """Reads the bytes of a process on a device, from `offset` of its line on, as many as `target` has.

        As `read_windows`.
        """
        self.read_windows(pid, device, [(offset, len(target))], target)

    def read_windows(self, pid: int, device: str, windows: Iterable[tuple[int, int]], target: memoryview) -> None:
        """Reads windows of the line of a process on a device, one behind the other. windows: offset and size of each

        Several threads may read at once. The target has bytes that were not compared until this returns, and after an
        error. Raises UsageError for bytes that are no window (chunks/windows.py).
        """
        line, at, wanted = self.lines.get((pid, device)), 0, list[Wanted]()
        if line is None:
            raise UsageError(f"image {self.name} has nothing of process {pid} on device {device}")
        for offset, length in windows:
            for first, within, size in line.spans(offset, length):
                wanted += self._placed(first, chunk_count(size, line.chunk_bytes), at + within)
            at += length
        self._bring(wanted, target, Into.TARGET_IF_CACHED)

    def read_file(self, name: str, target: memoryview, left: Sequence[Span] = ()) -> None:
        """Reads a file, without the spans that are `left` out, into a target that is zero. Writes no zeros there.

        The target has bytes that were not compared until this returns, and after an error. Raises UsageError for an
        unknown name, or a target of another size.
        """
        if self._file(name)[1].bytes != len(target) + sum(end - begin for begin, end in left):
            raise UsageError(f"image {self.name} has no file {name!r} of {len(target)} bytes")
        self._bring(self._kept(name, left), target, Into.TARGET_IF_CACHED)

    def read_files(self, names: Iterable[str]) -> Mapping[str, memoryview]:
        """Returns the contents of files: their chunks are asked for together, and read together where they may be.

        Each byte was compared. Raises UsageError for an unknown name.
        """
        places, wanted, end = dict[str, slice](), list[Wanted](), 0
        for name in names:
            wanted += [(part, end + at) for part, at in self._kept(name, ())]
            places[name] = slice(end, end := end + self._file(name)[1].bytes)
        content = memoryview(bytearray(end))
        self._bring(wanted, content, Into.BUFFER)
        return {name: content[place] for name, place in places.items()}

    def write_file(self, name: str, fd: int, left: Sequence[Span] = ()) -> None:
        """Writes a file, without the spans that are `left` out, to an empty one of its size; other zeros are holes.

        Raises UsageError for an unknown name; Unwritten where the file takes no bytes.
        """
        with usable(self.store.path):
            wanted = _joined(self._kept(name, left))
            groups = (group for part, at in wanted for group in self._groups_of(part, FilePart(fd, at, part.size)))
            self._fetcher.bring(groups, self.came)

    def begin_chunks(self, name: str, first: int, target: memoryview) -> "Reading":
        """Begins to read whole chunks of a file, from the chunk `first` on, as many as `target` has bytes of.

        The target may have bytes that are not compared until the reading is over. Raises UsageError for bytes that are
        no whole chunks of the file.
        """
        number, file = self._file(name)
        chunks = range(number + first, number + file.chunk_count(self.manifest.chunk_bytes))
        sizes = map(self._places.sizes.__getitem__, chunks)
        ends = takewhile(len(target).__ge__, accumulate(sizes, initial=0))
        count, end = max(enumerate(ends))
        if end != len(target):
            raise UsageError(f"image {self.name}: {len(target)} bytes are no whole chunks of file {name!r}")
        with usable(self.store.path):
            groups = self._groups(self._placed(number + first, count, 0), target, Into.TARGET)
            return Reading(self._fetcher.begin(groups, self.came), self.store.path)

    def zeros(self, name: str, within: Sequence[Span], unit: int) -> Iterator[Span]:
        """Yields the chunks of zeros of a file that lie in one of the spans, which are in order. Raises UsageError.

        unit: chunks that do not begin and end at a multiple of so many bytes are passed over
        """
        number = 0
        for part, begin in self._parts(name):
            if part.pack != ZEROS:
                continue
            at = begin
            for size in self._places.sizes[part.first : part.end]:
                while number < len(within) and within[number][1] < at + size:
                    number += 1
                inside = number < len(within) and within[number][0] <= at
                if inside and not at % unit and not size % unit:
                    yield at, at + size
                at += size

    def _kept(self, name: str, left: Sequence[Span]) -> Iterator[Wanted]:
        """Yields what is not zeros of a file, with its offset without what is `left` out, which is all zeros."""
        number = gone = 0
        for part, at in self._parts(name):
            while number < len(left) and left[number][1] <= at:
                gone, number = gone + left[number][1] - left[number][0], number + 1
            if part.pack != ZEROS:
                yield part, at - gone

    def _parts(self, name: str) -> Iterator[Wanted]:
        """Yields all chunks of a file, with their offsets."""
        first, file = self._file(name)
        return self._placed(first, file.chunk_count(self.manifest.chunk_bytes), 0)

    def _placed(self, first: int, count: int, at: int) -> Iterator[Wanted]:
        """Yields chunks that follow each other, from the offset `at` on."""
        for part in self._places.parts(first, first + count):
            yield part, at
            at += part.size

    def _file(self, name: str) -> tuple[int, ImagedFile]:
        if name not in self.files:
            raise UsageError(f"image {self.name} has no file {name!r}")
        return self.files[name]

    def _bring(self, wanted: Iterable[Wanted], target: memoryview, into: Into) -> None:
        with usable(self.store.path):
            self._fetcher.bring(self._groups(wanted, target, into), self.came)

    def check(self, whole: set[Pack] | None = None) -> Iterator[int]:
        """Compares every byte of every file; yields the bytes compared.

        `whole`: packs that were compared just now, and are skipped; the packs of this image are added.
        """
        self.check_hashes()
        whole = set() if whole is None else whole
        with usable(self.store.path):
            for pack in self._packs:
                if pack.pack in whole:
                    continue
                try:
                    for size in pack.check():
                        self.store.pulse()
                        yield size
                except Damaged:
                    self._distrust(pack)
                    raise
                whole.add(pack.pack)

    def check_hashes(self) -> None:
        """Compares the hashes with the manifest, which no reading needs, and all chunks' places with the packs."""
        with usable(self.store.path):
            self.store.images.hashes(self.manifest)
            self._places.check()

    def _groups(self, wanted: Iterable[Wanted], target: memoryview, into: Into) -> Iterator[Group]:
        """Yields the chunks that lie in packs; fills those of zeros, which lie in none. `into`: where that fits."""
        for part, at in _joined(wanted):
            if part.pack == ZEROS:
                self._clear(target[at : at + part.size])
                continue
            yield from self._groups_of(part, target[at : at + part.size], into)

    def _groups_of(self, part: Part, target: memoryview | FilePart, into: Into = Into.BUFFER) -> Iterator[Group]:
        """Yields the chunks of a part, which lie in a pack."""
        pack, at = self._packs[part.pack], 0
        for run in pack.runs(part.there, part.until, GROUP_BYTES):
            there = target[at : at + run.size]
            fits = isinstance(there, memoryview) and into is not Into.BUFFER and pack.fits(run, there)
            yield Group(pack, run, there, into if fits else Into.BUFFER)
            at += run.size

    def _clear(self, target: memoryview) -> None:
        for at in range(0, len(target), GROUP_BYTES):
            clear(some := target[at : at + GROUP_BYTES])
            self.came(len(some))

    def _distrust(self, pack: PackReader) -> None:
        """Keeps later images from using a damaged pack."""
        self.store.packs.distrust(pack.path)


class Reading(Struct, frozen=True):
    """Chunks that are being read. One of its methods must be called before their memory is used otherwise."""

    call: Call
    store: Path

    def result(self) -> None:
        """Waits until all were read and compared. Raises Damaged, StoreUnusable; the target has any bytes then."""
        with usable(self.store):
            self.call.result()

    def stop(self) -> None:
        """Reads no more, and waits until nothing is written to the target."""
        self.call.stop()


def _joined(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """Yields the same chunks; those that lie one behind the other in a pack, and will in the target, together."""
    last: Part | None = None
    begin = 0
    for part, at in wanted:
        if last and (part.pack, part.there, at) == (last.pack, last.until, begin + last.size):
            last = replace(last, end=last.end + part.end - part.first, size=last.size + part.size)
            continue
        if last:
            yield last, begin
        last, begin = part, at
    if last:
        yield last, begin
