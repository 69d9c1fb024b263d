"""Reads an image. No byte is handed on before its chunk was compared with its name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from gcr.errors import UsageError
from gcr.image.chunks.entry import BLOCK, Entry, padded
from gcr.image.chunks.windows import ImagedLine, LineKey, lines_of
from gcr.image.disk.failing import usable
from gcr.image.disk.threads import groups
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS, Reference
from gcr.image.files.smallfiles import chunk_sizes, files_of
from gcr.image.pack.format import GROUP_BYTES, Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.fetching import Fetcher, Group
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

Wanted = tuple[Reference, memoryview]  # a chunk, and its target
Span = tuple[int, int]  # begin and end


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
    _references: Sequence[Reference] = field(init=False)
    _packs: list[PackReader] = field(default_factory=list)
    _entries: list[dict[int, Entry]] = field(default_factory=list)  # of each pack, by block
    _stack: ExitStack = field(default_factory=ExitStack)
    _fetcher: Fetcher = field(init=False)

    def __enter__(self) -> Self:
        with ExitStack() as begun, usable(self.store.path):
            begun.enter_context(self.store.used())
            self.manifest = self.store.images.manifest(self.name)
            tables = (process.table for process in self.manifest.processes)
            self.lines = lines_of(tables, self.manifest.chunk_bytes)
            self.files = files_of(self.manifest)
            self._references = self.store.images.references(self.manifest)
            self._packs = [self.store.packs.reader(pack) for pack in self.manifest.packs]
            self._entries = checked_entries(self.store, self.manifest, self._references, self._packs)
            most = max(GROUP_BYTES, padded(self.manifest.chunk_bytes))
            self._fetcher = begun.enter_context(Fetcher(self.threads, most, self._distrust))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, pid: int, device: str, offset: int, target: memoryview) -> None:
        """Reads the bytes of a process on a device, from `offset` of its line on, as many as `target` has.

        Several threads may read at once. Raises UsageError for bytes that are no window (chunks/windows.py).
        """
        line = self.lines.get((pid, device))
        if line is None:
            raise UsageError(f"image {self.name} has nothing of process {pid} on device {device}")
        wanted = [
            (self._references[number], target[start : start + size])
            for number, start, size in line.chunks(offset, len(target))
        ]
        self._bring(wanted)

    def read_file(self, name: str, target: memoryview, left: Sequence[Span] = ()) -> None:
        """Reads a file, without the spans that are `left` out, into a target that is zero.

        Writes to the `stored` bytes alone: those of a sparse file may be missing elsewhere. Raises UsageError for an
        unknown name, or a target of another size.
        """
        if self._file(name)[1].bytes - sum(end - begin for begin, end in left) != len(target):
            raise UsageError(f"image {self.name} has no file {name!r} of {len(target)} bytes")
        self._bring([(reference, target[at : at + size]) for reference, at, size in self._kept(name, left)])

    def stored(self, name: str, left: Sequence[Span] = ()) -> Iterator[tuple[int, int]]:
        """Yields what is not zeros of a file, chunk by chunk: offset without what is `left` out, and bytes."""
        return ((at, size) for _, at, size in self._kept(name, left))

    def zeros(self, name: str, within: Sequence[Span], unit: int) -> Iterator[Span]:
        """Yields the chunks of zeros of a file that lie in one of the spans, which are in order. Raises UsageError.

        unit: chunks that do not begin and end at a multiple of so many bytes are passed over
        """
        number = 0
        for reference, at, size in self._chunks(name):
            while number < len(within) and within[number][1] < at + size:
                number += 1
            inside = number < len(within) and within[number][0] <= at
            if reference.pack == ZEROS and inside and not at % unit and not size % unit:
                yield at, at + size

    def _kept(self, name: str, left: Sequence[Span]) -> Iterator[tuple[Reference, int, int]]:
        number = gone = 0
        for reference, at, size in self._chunks(name):
            while number < len(left) and left[number][1] <= at:
                gone, number = gone + left[number][1] - left[number][0], number + 1
            if reference.pack != ZEROS:
                yield reference, at - gone, size

    def _chunks(self, name: str) -> Iterator[tuple[Reference, int, int]]:
        """Yields each chunk of a file, with its offset and its bytes."""
        first, file = self._file(name)
        for number, (at, size) in enumerate(file.chunks(self.manifest.chunk_bytes)):
            yield self._references[first + number], at, size

    def _file(self, name: str) -> tuple[int, ImagedFile]:
        if name not in self.files:
            raise UsageError(f"image {self.name} has no file {name!r}")
        return self.files[name]

    def _bring(self, wanted: Sequence[Wanted]) -> None:
        with usable(self.store.path):
            self._fetcher.bring(self._stored(groups(wanted, _stored_size, GROUP_BYTES, _follows)), self.came)

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
        """Compares the hashes with the manifest; reading the image needs none."""
        with usable(self.store.path):
            self.store.images.hashes(self.manifest)

    def _stored(self, together: Iterable[Sequence[Wanted]]) -> Iterator[Group]:
        """Yields the chunks that lie in packs; fills the targets of zeros, which lie in none."""
        for wanted in together:
            number, targets = wanted[0][0].pack, [target for _, target in wanted]
            if number != ZEROS:
                entries = [self._entries[number][reference.block] for reference, _ in wanted]
                yield Group(self._packs[number], entries, targets)
                continue
            for target in targets:
                target[:] = bytes(len(target))
            self.came(sum(map(len, targets)))

    def _distrust(self, pack: PackReader) -> None:
        """Keeps later images from using a damaged pack."""
        self.store.packs.distrust(pack.path)


def checked_entries(
    store: Store, manifest: Manifest, references: Iterable[Reference], packs: Sequence[PackReader]
) -> list[dict[int, Entry]]:
    """Returns the entries of each pack by block. Raises Damaged unless each chunk is where the references say."""
    entries = [{entry.block: entry for entry in pack.entries} for pack in packs]
    for reference, size in zip(references, chunk_sizes(manifest), strict=True):
        if reference.pack == ZEROS:
            known = reference.name == store.cipher.name_of_zeros(size)
        else:
            known = _is_there(reference, size, entries)
        if not known:
            raise Damaged.of(store.images.folder / manifest.name, "a chunk is not where it should be")
    return entries


def _is_there(reference: Reference, size: int, entries: Sequence[Mapping[int, Entry]]) -> bool:
    if reference.pack >= len(entries):
        return False
    entry = entries[reference.pack].get(reference.block)
    return entry is not None and (entry.name, entry.size) == (reference.name, size)


def _stored_size(wanted: Wanted) -> int:
    return padded(len(wanted[1]))


def _follows(last: Wanted, wanted: Wanted) -> bool:
    """Returns whether two chunks can be read at once: one lies behind the other, or both are zero."""
    (before, target), (reference, _) = last, wanted
    if before.pack == ZEROS or before.pack != reference.pack:
        return before.pack == reference.pack
    return reference.block == before.block + padded(len(target)) // BLOCK
