"""Writes the chunks of an image, or of a part of one: cuts memory into chunks, names each, and writes the new ones.

Those that the store does not have go into new packs (newpacks.py), as do those that it has in sparse packs alone
(usage.py). The memory lies still, mapped in this process; several threads name and write it at once. Chunks that are
those of the parent are taken from it, run by run (inherited.py). writer.py publishes what one process wrote as an
image, joining.py what several did.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, Self

from msgspec import Struct

from gcr.errors import RolledBack, UsageError
from gcr.hashing import HashKey, hash_bytes, hash_each
from gcr.hashing.chunks import CHUNK_BYTES, chunk_count
from gcr.image.chunks.entry import padded
from gcr.image.chunks.records import Records
from gcr.image.disk.failing import usable
from gcr.image.disk.threads import all_of, groups, started
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.pack.format import GROUP_BYTES, Pack
from gcr.image.pack.pace import Pace, Packing
from gcr.image.store.store import Store
from gcr.image.write.brought import BroughtChunks
from gcr.image.write.inherited import Inherited
from gcr.image.write.placing import Counts, Placed, Placing
from gcr.image.write.rate import Rate
from gcr.image.write.stretches import NamedPiece, NamedStretch, Source, Stretch, Unread, stretches, unread

Addition = tuple[memoryview, Sequence[Inherited]]  # an allocation, and its chunks that are the parent's, in order
AddedFile = tuple[ImagedFile, memoryview | Source]


class Part(Struct, frozen=True):
    """Chunks that one process has written, in order. `references`, `digests`: as in the files of an image.

    packs: those that have one of the chunks, as the references count them; all are synced
    digests: empty if the writer had no key · pace: of its own packs; None where several parts were joined
    """

    packs: Sequence[Pack]
    references: bytes
    digests: bytes
    counts: Counts
    pace: Pace | None = None


class _Work(Struct, frozen=True):
    """The tools of a writer within its block. `naming`: threads that name chunks; those of a pack add them."""

    placing: Placing
    naming: ThreadPoolExecutor
    brought: BroughtChunks

    def do(
        self,
        jobs: Iterable[Any],
        name: Callable[[Any], Any],
        place: Callable[[Any], Placed | None],
        write: Callable[[Placed], object],
    ) -> None:
        """Passes each job through these steps: the calling thread places, the others work on threads of their own."""

        def begin_write(placed: Placed) -> Future[object]:
            return placed.pack.filling.submit(write, placed)

        all_of(jobs, lambda job: self.naming.submit(name, job), begin_write, place)


@dataclass(slots=True)
class PartWriter:
    """Writes chunks of the image `name`. Leaving the `with` block without `finish` leaves nothing.

    After the block no lock keeps the packs from a clean-up: the process that publishes the image holds the store's lock
    from before the block until the end.

    key: of the device hashes; None: there are none · going: names of images that go once this one is there
    packing: whether its packs are compressed; then LibraryMissing is raised where the codec is not there

    Everything raises StoreUnusable if the disk is full, fails, or is gone.
    """

    store: Store
    name: str
    threads: int = 8
    rate: Rate = field(default_factory=lambda: Rate(None))
    chunk_bytes: int = CHUNK_BYTES
    key: HashKey | None = None
    going: Collection[str] = ()
    packing: Packing = "plain"
    counts: Counts = field(default_factory=Counts)
    _stack: ExitStack = field(default_factory=ExitStack)
    _work: _Work = field(init=False)
    _failed: BaseException | None = None  # then a chunk that has its place may be nowhere

    def __enter__(self) -> Self:
        with ExitStack() as begun, usable(self.store.path):
            self._hold(begun)
            most = max(GROUP_BYTES, padded(self.chunk_bytes))
            placing = Placing(self.store, self.counts, most, self.threads, self.going, self.packing)
            begun.callback(placing.abandon)
            cores = max(2, os.cpu_count() or 1)  # a thread that names waits for nothing; more get in each other's way
            naming = begun.enter_context(started(min(self.threads, cores), "gcr-name"))
            self._work = _Work(placing, naming, BroughtChunks())
            self._stack = begun.pop_all()
        return self

    def _hold(self, begun: ExitStack) -> None:
        """Takes the locks that are held within the block."""
        begun.enter_context(self.store.used())

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def prepare(self) -> None:
        """Does what the first chunk would wait for."""
        self._work.placing.prepare()

    def add(self, allocations: Iterable[Addition]) -> None:
        """Adds all bytes of allocations, behind those added before. One call at a time.

        The bytes must not change meanwhile; those of inherited chunks are not read. Raises UsageError for runs of
        chunks that the allocation has not, or has twice.
        """
        self._add_all(self._stretches(allocations))

    def _stretches(self, allocations: Iterable[Addition]) -> Iterator[Stretch]:
        """Yields the chunks that are read. The others are entered, run by run, as the iteration comes to them."""
        first = self._work.brought.count
        for memory, inherited in allocations:
            at = 0
            for run in inherited:
                yield from self._cut(first + at, memory[at * self.chunk_bytes : run.first * self.chunk_bytes])
                self._inherit(first, len(memory), run)
                at = run.end
            yield from self._cut(first + at, memory[at * self.chunk_bytes :])
            first += chunk_count(len(memory), self.chunk_bytes)

    def _cut(self, first: int, memory: memoryview) -> Iterator[Stretch]:
        """Yields memory as stretches of chunks, from the number `first` on."""
        whole, rest = divmod(len(memory), self.chunk_bytes)
        return stretches(first, memory, chain(repeat(self.chunk_bytes, whole), [rest] * bool(rest)), GROUP_BYTES)

    def _inherit(self, first: int, size: int, run: Inherited) -> None:
        if run.of.size != size or not 0 <= run.first < run.end <= chunk_count(size, self.chunk_bytes):
            raise UsageError(f"the parent of image {self.name} has no chunks {run.first} to {run.end} of {size} bytes")
        found = self._work.placing.inherit(run, self.chunk_bytes)
        self._refuse_twice(self._work.brought.add_run(first + run.first, found, run.digests))

    def _refuse_twice(self, twice: int | None) -> None:
        if twice is not None:
            raise UsageError(f"chunk {twice} of image {self.name} was brought before")

    def add_file(self, file: ImagedFile, memory: memoryview) -> None:
        """Adds the bytes of a file, behind all that was added before; no allocation may follow. One call at a time.

        The bytes must not change meanwhile. The manifest names the files in the same order.
        """
        self.add_files([(file, memory)])

    def add_files(self, files: Iterable[AddedFile]) -> None:
        """Adds the bytes of files as `add_file` does. A file is asked for once there is work for a thread."""
        self._add_all(self._stretches_of(files))

    def _stretches_of(self, files: Iterable[AddedFile]) -> Iterator[Stretch | Unread]:
        """Yields the chunks of files without device hashes: a next image asks only for those of device memory."""
        first = self._work.brought.count
        for file, content in files:
            sizes = (size for _, size in file.chunks(self.chunk_bytes))
            if isinstance(content, memoryview):
                yield from stretches(first, content, sizes, GROUP_BYTES, hashed=False)
            else:
                yield from unread(first, content, sizes, GROUP_BYTES)
            first += file.chunk_count(self.chunk_bytes)

    def put(self, spans: Iterable[tuple[int, memoryview]]) -> None:
        """Adds chunks of allocations, each once, in any order and by any thread.

        A span has the number of its first chunk in the image, and the bytes of one chunk or of several that follow each
        other. They must not change meanwhile. Raises UsageError for a chunk that was put before.
        """
        self._add_all(stretch for first, memory in spans for stretch in self._cut(first, memory))

    def records(self, first: int, count: int) -> Records:
        """Returns the references of chunks by their numbers. Raises RolledBack if one was not added."""
        self._refuse_missing(first, count)
        return self._work.brought.records(first, count)

    def _refuse_missing(self, first: int, count: int) -> None:
        if (missing := self._work.brought.missing(first, count)) is not None:
            raise RolledBack(f"chunk {missing} of image {self.name} was never brought")

    def finish(self) -> Part:
        """Finishes the packs, once; nothing can be added any more. The caller syncs the folder of the packs."""
        with usable(self.store.path):
            self._refuse_failed()
            self._refuse_missing(0, self._work.brought.count)
            finished = self._work.naming.submit(self._work.placing.finish)
            brought = self._work.brought
            found, digests = bytes(brought.references), bytes(brought.digests) if self.key else b""
            finished.result()
            return Part(self._work.placing.used(), found, digests, self.counts, self._work.placing.pacer.pace())

    def _turn(self) -> Sequence[Pack]:
        """Finishes the packs so far, and begins another. Returns them. No chunk is placed meanwhile."""
        with usable(self.store.path):
            self._refuse_failed()
            return self._work.placing.turn()

    def _add_all(self, found: Iterable[Stretch | Unread]) -> None:
        self._refuse_failed()
        waiting = list[NamedPiece]()
        try:
            with usable(self.store.path):
                together = groups(found, lambda stretch: stretch.stored, GROUP_BYTES)
                self._work.do(together, self._named, partial(self._place, waiting), self._write)
                if waiting:
                    self._place_waiting(waiting)
        except BaseException as error:
            self._failed = error
            raise

    def _refuse_failed(self) -> None:
        if self._failed:
            raise self._failed

    def _named(self, group: Sequence[Stretch | Unread]) -> Sequence[NamedStretch]:
        here = [each.brought() if isinstance(each, Unread) else each for each in group]
        return [NamedStretch(each, self._names_of(each), self._digests_of(each)) for each in here]

    def _names_of(self, stretch: Stretch) -> bytes:
        return self.store.cipher.names_of(stretch.memory, stretch.starts, stretch.sizes)

    def _digests_of(self, stretch: Stretch) -> bytes:
        if self.key is None or not stretch.hashed:
            return b""
        if {*stretch.sizes[:-1]} <= {self.chunk_bytes}:
            return hash_bytes(stretch.memory, self.key, self.chunk_bytes)
        return b"".join(hash_each(stretch.pieces(), self.key, self.chunk_bytes))

    def _place(self, waiting: list[NamedPiece], named: Sequence[NamedStretch]) -> Placed | None:
        """Places chunks that were named. Returns those that must be written; the others are entered."""
        placed = self._work.placing.place(named)
        waiting += placed.waiting
        for run in placed.runs:
            self._refuse_twice(self._work.brought.add_run(run.first, run.references, run.digests))
        return placed if placed.brought else None

    def _place_waiting(self, waiting: Sequence[NamedPiece]) -> None:
        """Places the chunks that wait to be told how much this image takes of each pack. They are not named again."""
        work = self._work
        work.placing.take(waiting)
        together = groups(waiting, lambda each: padded(len(each[0][1])), GROUP_BYTES)
        work.do(together, list, work.placing.place_waiting, self._write)

    def _write(self, placed: Placed) -> None:
        self.rate.spend(sum(entry.size for entry in placed.entries))
        placed.pack.write(placed.entries, placed.data)
        self._refuse_twice(self._work.brought.add(placed.brought))
