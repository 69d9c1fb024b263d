"""Writing an image: memory is cut into chunks, each is named, and what the store does not have yet goes into one pack.

The memory lies still, mapped in this process; several threads name and write it at once, straight from where it is.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image import references
from gcr.image.chunks import cut
from gcr.image.known import Known
from gcr.image.manifest import Manifest
from gcr.image.pack import Pack, PackWriter
from gcr.image.rate import Rate
from gcr.image.references import ZEROS, Reference
from gcr.image.store import Store, manifest_path, references_path, sync, usable
from gcr.image.together import all_of

TOGETHER = 32  # chunks that are named by one thread, and written at once


@dataclass(slots=True)
class Counts:
    """Bytes so far: all that was added, of these zero, and written now. The rest the store had before."""

    total: int = 0
    zero: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """What a manifest says of the bytes. `names`: of all chunks, in order."""

    packs: Sequence[Pack]
    chunks: bytes
    counts: Counts
    names: Sequence[bytes]


@dataclass(slots=True)
class ImageWriter:
    """One image. Whoever leaves the `with` block without `commit` leaves nothing behind that counts.

    Entering raises ImageExists; everything raises StoreUnusable where the disk is full, or fails, or is gone.
    """

    store: Store
    name: str
    threads: int = 8
    rate: Rate = field(default_factory=lambda: Rate(None))
    chunk_bytes: int = CHUNK_BYTES
    counts: Counts = field(default_factory=Counts)
    _stack: ExitStack = field(default_factory=ExitStack)
    _pool: ThreadPoolExecutor = field(init=False)
    _pack: PackWriter = field(init=False)
    _before: Known = field(default_factory=Known)  # what the store had
    _known: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # of those seen: pack and block, by the name
    _finished: dict[str, Pack] = field(default_factory=dict)
    _added: list[tuple[bytes, str, int]] = field(default_factory=list)  # name, pack, block
    _new: int = -1  # descriptor of the manifest that is being written
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Self:
        with ExitStack() as begun, usable(self.store.path):
            self.store.sweep()
            begun.enter_context(self.store.used())
            self._new = begun.enter_context(self.store.claimed(self.name))
            self._look_at_packs()
            self._pack = PackWriter(self.store.packs, self.store.cipher)
            begun.callback(self._pack.abandon)
            self._pool = begun.enter_context(ThreadPoolExecutor(self.threads, "gcr-image"))
            self._stack = begun.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, memory: memoryview) -> None:
        """All bytes of one allocation, which nobody changes meanwhile, after those added before."""
        pieces = [memory[start : start + size] for start, size in cut(len(memory), self.chunk_bytes)]
        groups = (pieces[first : first + TOGETHER] for first in range(0, len(pieces), TOGETHER))
        with usable(self.store.path):
            for added in all_of(self._pool, self._add, groups):
                self._added += added

    def commit(self, described: Callable[[Contents], Manifest]) -> Manifest:
        """When this returns the image outlives a crash of anything. `described` makes its manifest. Once."""
        with usable(self.store.path):
            contents = self._finish()
            manifest = described(contents)
            data = self.store.cipher.encrypt(manifest_path(self.name), manifest.to_bytes())
            self.store.publish(self.name, data, self._new)
        return manifest

    def _look_at_packs(self) -> None:
        for reader in self.store.open_packs():
            with reader:
                self._finished[reader.pack.id] = reader.pack
                self._before.add(reader)

    def _add(self, pieces: Sequence[memoryview]) -> Sequence[tuple[bytes, str, int]]:
        names = [self.store.cipher.name_of(data) for data in pieces]
        with self._lock:
            unknown: dict[bytes, memoryview] = {}
            for name, data in zip(names, pieces, strict=True):
                self._count(name, len(data))
                if not self._knows(name):
                    unknown[name] = data
            entries = self._pack.place([(name, len(data)) for name, data in unknown.items()])
            self._known.update({entry.name: (self._pack.id, entry.block) for entry in entries})
            self.counts.written += sum(entry.size for entry in entries)
            found = [(name, *self._known[name]) for name in names]
        self.rate.spend(sum(entry.size for entry in entries))
        self._pack.write(entries, [*unknown.values()])
        return found

    def _knows(self, name: bytes) -> bool:
        """The lock is held."""
        if name not in self._known and (place := self._before.find(name)):
            self._known[name] = place
        return name in self._known

    def _count(self, name: bytes, size: int) -> None:
        """The lock is held. A chunk of zeros is known, and nowhere."""
        self.counts.total += size
        if name == self.store.cipher.name_of_zeros(size):
            self.counts.zero += size
            self._known.setdefault(name, ("", 0))

    def _finish(self) -> Contents:
        if self.counts.written:
            self._finished[self._pack.id] = self._pack.finish()
        sync(self.store.packs)  # also for packs of others, who may have died before they did
        packs = sorted({pack for _, pack, _ in self._added if pack})
        number = {pack: index for index, pack in enumerate(packs)} | {"": ZEROS}
        found = references.to_bytes(Reference(name, number[pack], block) for name, pack, block in self._added)
        self.store.write_references(self.name, self.store.cipher.encrypt(references_path(self.name), found))
        names = [name for name, _, _ in self._added]
        return Contents([self._finished[pack] for pack in packs], references.digest(found), self.counts, names)
