"""Writing an image: memory is cut into chunks, each is named, and what the store does not have yet goes into one pack.

The memory lies still, mapped in this process; several threads name and write it at once. A chunk of which the store is
known to have the very bytes may be added by its name.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from msgspec import Struct

from gcr.errors import Damaged, RolledBack, UsageError
from gcr.hashing import HashKey, hash_each
from gcr.hashing.chunks import CHUNK_BYTES, chunk_count
from gcr.image.chunks.chunk import Chunk, cut, name_of
from gcr.image.chunks.entry import Entry, padded
from gcr.image.disk.durable import sync
from gcr.image.disk.failing import usable
from gcr.image.disk.threads import all_of, groups, started
from gcr.image.files import references
from gcr.image.files.hashes import ImageHashes
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import hashes_path, manifest_path, references_path
from gcr.image.files.references import ZEROS
from gcr.image.files.smallfiles import MOST_BESIDE, MOST_MANIFEST
from gcr.image.pack.format import GROUP_BYTES, Pack
from gcr.image.pack.writer import WAITING, PackWriter
from gcr.image.store.claim import Claim
from gcr.image.store.store import Store
from gcr.image.write.brought import Brought, BroughtChunks
from gcr.image.write.known import Known
from gcr.image.write.rate import Rate


class Counts(Struct):
    """Bytes so far: all that was added, of these zero, and written now. The rest the store had before."""

    total: int = 0
    zero: int = 0
    written: int = 0


class Contents(Struct, frozen=True):
    """What a manifest says of the bytes: packs, and digests of the references and of the hashes."""

    packs: Sequence[Pack]
    chunks: bytes
    hashes: bytes
    counts: Counts


class _Placed(Struct, frozen=True):
    """Chunks that were named together, by their numbers, and what of them is to be written."""

    entries: Sequence[Entry]
    data: Sequence[memoryview]
    brought: Sequence[Brought]


Addition = tuple[memoryview, Mapping[int, Chunk]]  # an allocation; chunks by number that are known are not looked at
Piece = tuple[int, memoryview, Chunk | None]  # its number in the image; None: its bytes say what it is


@dataclass(slots=True)
class ImageWriter:
    """One image. Whoever leaves the `with` block without `commit` leaves nothing behind that counts.

    `key`: of the chain that the image continues, before anything is added; else one begins.
    Entering raises ImageExists; everything raises StoreUnusable where the disk is full, or fails, or is gone.
    """

    store: Store
    name: str
    threads: int = 8
    rate: Rate = field(default_factory=lambda: Rate(None))
    chunk_bytes: int = CHUNK_BYTES
    key: HashKey = field(default_factory=HashKey.random)
    counts: Counts = field(default_factory=Counts)
    _stack: ExitStack = field(default_factory=ExitStack)
    _naming: ThreadPoolExecutor = field(init=False)
    _filling: ThreadPoolExecutor = field(init=False)
    _pack: PackWriter = field(init=False)
    _before: Known = field(default_factory=Known)  # what the store had
    _here: dict[bytes, int] = field(default_factory=dict)  # by the name: the block in this image's pack, or 0 for zeros
    _numbers: dict[str, int] = field(default_factory=lambda: {"": ZEROS})  # of packs, by the order of first use
    _finished: dict[str, Pack] = field(default_factory=dict)
    _brought: BroughtChunks = field(default_factory=BroughtChunks)
    _claim: Claim = field(init=False)
    _failed: BaseException | None = None  # then a chunk that has its place may be nowhere
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Self:
        with ExitStack() as begun, usable(self.store.path):
            self.store.sweep()
            begun.enter_context(self.store.used())
            self._claim = begun.enter_context(self.store.claimed(self.name))
            self._look_at_packs()
            self._pack = PackWriter(
                self.store.packs.folder, self.store.cipher, max(GROUP_BYTES, padded(self.chunk_bytes))
            )
            begun.callback(self._pack.abandon)
            self._naming = begun.enter_context(started(self.threads, "gcr-name"))
            self._filling = begun.enter_context(started(min(self.threads, WAITING), "gcr-fill"))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def has(self, name: bytes, size: int) -> bool:
        """Whether the store has a chunk of this name, or need not: then it may be added by it."""
        with self._lock:
            return self._where(name) is not None or name == self.store.cipher.name_of_zeros(size)

    def add(self, allocations: Iterable[Addition]) -> None:
        """All bytes of allocations, which nobody changes meanwhile, after those added before. One call at a time.

        Raises Damaged where the store lacks what is added by its name.
        """
        self._add_all(self._pieces(allocations))

    def _pieces(self, allocations: Iterable[Addition]) -> Iterator[Piece]:
        first = self._brought.count
        for memory, known in allocations:
            for number, (start, size) in enumerate(cut(len(memory), self.chunk_bytes)):
                yield first + number, memory[start : start + size], known.get(number)
            first += chunk_count(len(memory), self.chunk_bytes)

    def put(self, chunks: Iterable[tuple[int, memoryview]]) -> None:
        """Chunks by their numbers in the image, each once, in any order and by any thread.

        Nobody changes their bytes meanwhile. Raises UsageError for one that was put before.
        """
        self._add_all((number, memory, None) for number, memory in chunks)

    def names(self, first: int, count: int) -> Sequence[bytes]:
        """Of chunks by their numbers. Raises RolledBack where one was not added."""
        self._refuse_missing(first, count)
        return self._brought.names(first, count)

    def _refuse_missing(self, first: int, count: int) -> None:
        if (missing := self._brought.missing(first, count)) is not None:
            raise RolledBack(f"chunk {missing} of image {self.name} was never brought")

    def commit(self, described: Callable[[Contents], Manifest]) -> Manifest:
        """When this returns the image outlives a crash of anything. `described` makes its manifest. Once."""
        with usable(self.store.path):
            contents = self._finish()
            manifest = described(contents)
            text = manifest.to_bytes()
            Manifest.from_bytes(text, self.name)  # as every reader will: an image that none takes is none
            data = self.store.cipher.encrypt(manifest_path(self.name), text)
            if len(data) > MOST_MANIFEST:
                raise OSError(errno.EFBIG, "an image cannot have so many allocations", self.name)
            if len(self._brought.references) > MOST_BESIDE:
                raise OSError(errno.EFBIG, "an image cannot be so large", self.name)
            self._claim.publish(data)
        return manifest

    def _look_at_packs(self) -> None:
        for pack in self.store.packs.trusted():
            self._finished[pack.pack.id] = pack.pack
            self._before.add(pack)

    def _add_all(self, pieces: Iterable[Piece]) -> None:
        self._refuse_failed()
        try:
            with usable(self.store.path):
                together = groups(pieces, lambda piece: padded(len(piece[1])), GROUP_BYTES)
                all_of(together, (self._naming, self._named), (self._filling, self._write), self._place)
        except BaseException as error:
            self._failed = error
            raise

    def _refuse_failed(self) -> None:
        if self._failed:
            raise self._failed

    def _named(self, pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Chunk]]:
        return pieces, self._chunks_of(pieces)

    def _place(self, named: tuple[Sequence[Piece], Sequence[Chunk]]) -> _Placed:
        """What the store lacks has a place in the pack then: chunks lie there as they will be read."""
        pieces, chunks = named
        with self._lock:
            places: dict[bytes, tuple[str, int]] = {}
            unknown: dict[bytes, memoryview] = {}
            for chunk, (_, data, known) in zip(chunks, pieces, strict=True):
                self._count(chunk.name, len(data))
                if place := self._where(chunk.name):
                    places[chunk.name] = place
                elif known:
                    raise Damaged.of(self.store.path, f"it has no chunk {chunk.name.hex()}")
                else:
                    unknown[chunk.name] = data
            entries = self._pack.place([(name, len(data)) for name, data in unknown.items()])
            for entry in entries:
                self._here[entry.name] = entry.block
                places[entry.name] = self._pack.id, entry.block
            self.counts.written += sum(entry.size for entry in entries)
            brought = [
                self._brought_as(piece[0], chunk, *places[chunk.name])
                for piece, chunk in zip(pieces, chunks, strict=True)
            ]
        return _Placed(entries, [*unknown.values()], brought)

    def _write(self, placed: _Placed) -> None:
        self.rate.spend(sum(entry.size for entry in placed.entries))
        self._pack.write(placed.entries, placed.data)
        with self._lock:
            if (twice := self._brought.twice(placed.brought)) is not None:
                raise UsageError(f"chunk {twice} of image {self.name} was brought before")
            self._brought.add(placed.brought)

    def _chunks_of(self, pieces: Sequence[Piece]) -> Sequence[Chunk]:
        looked_at = [data for _, data, known in pieces if not known]
        digests = iter(hash_each(looked_at, self.key, self.chunk_bytes))
        return [known or Chunk(self.store.cipher.name_of(data), next(digests)) for _, data, known in pieces]

    def _where(self, name: bytes) -> tuple[str, int] | None:
        """Pack and block; zeros are in a pack without a name. The lock is held."""
        if (block := self._here.get(name)) is None:
            return self._before.find(name)
        return self._pack.id if block else "", block

    def _brought_as(self, number: int, chunk: Chunk, pack: str, block: int) -> Brought:
        """The lock is held."""
        return Brought(number, chunk, self._numbers.setdefault(pack, len(self._numbers) - 1), block)

    def _count(self, name: bytes, size: int) -> None:
        """The lock is held. A chunk of zeros is known, and nowhere."""
        self.counts.total += size
        if name == self.store.cipher.name_of_zeros(size):
            self.counts.zero += size
            self._here.setdefault(name, 0)

    def _finish(self) -> Contents:
        brought = self._brought
        self._refuse_failed()
        self._refuse_missing(0, brought.count)
        finished = self._filling.submit(self._pack.finish) if self.counts.written else None
        found, hashed = bytes(brought.references), ImageHashes(self.key, bytes(brought.digests)).to_bytes()
        if finished:
            self._finished[self._pack.id] = finished.result()
        sync(self.store.packs.folder)  # also for packs of others, who may have died before they did
        self._claim.write_references(self.store.cipher.encrypt(references_path(self.name), found))
        self._claim.write_hashes(self.store.cipher.encrypt(hashes_path(self.name), hashed))
        used = [self._finished[pack] for pack in self._numbers if pack]
        self.store.packs.refuse_distrusted(used)
        return Contents(used, references.digest(found), name_of(hashed), self.counts)
