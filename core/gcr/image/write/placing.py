"""Places the chunks of an image: in a pack that the store has, in one of this image's own, or nowhere if zero."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from gcr.image.chunks.chunk import NAME_BYTES, Chunk
from gcr.image.chunks.entry import Entry
from gcr.image.files import references
from gcr.image.files.references import ZEROS
from gcr.image.pack.format import Pack
from gcr.image.pack.pace import Pacer, Packing
from gcr.image.pack.writer import PackWriter
from gcr.image.store.store import Store
from gcr.image.write.brought import Brought
from gcr.image.write.inherited import Inherited
from gcr.image.write.known import Known
from gcr.image.write.newpacks import NewPacks
from gcr.image.write.stretches import NamedPiece, NamedStretch
from gcr.image.write.usage import Usage

Place = tuple[str, int]  # pack and block


class Counts(Struct):
    """Bytes so far: all that were added, the zero ones of these, and those written. The store had the rest before.

    stored: of those written, once the packs are finished: as they lie there, where they may be compressed
    """

    total: int = 0
    zero: int = 0
    written: int = 0
    stored: int = 0


class Run(Struct, frozen=True):
    """Chunks that are there, from the number `first` on. `references`, `digests`: as in the files of an image."""

    first: int
    references: bytes
    digests: bytes


class Placed(Struct, frozen=True):
    """Chunks that were named together.

    pack: the one that still needs entries, data · brought, runs: all that have a place · waiting: the others
    """

    pack: PackWriter
    entries: Sequence[Entry]
    data: Sequence[memoryview]
    brought: Sequence[Brought]
    waiting: Sequence[NamedPiece]
    runs: Sequence[Run] = ()


class Placing:
    """Finds or makes the place of each chunk: pack and block. Thread-safe."""

    def __init__(
        self, store: Store, counts: Counts, most: int, threads: int, going: Collection[str], packing: Packing
    ) -> None:
        """Reads the indexes of the store's packs, and begins a pack. Raises OSError, LibraryMissing.

        most: see PackWriter · threads: of each pack that add chunks · packing: see Pacer · going: see Usage
        """
        self._store, self._counts = store, counts
        self._lock = Lock()
        self._before = Known()  # chunks that the store had
        self._usage = Usage(store.images, going, self._before)
        self._here: dict[bytes, Place] = {}  # by name: the place in a pack of this image
        self._numbers = {"": ZEROS}  # of packs, in the order of first use; the pack without a name is that of zeros
        self._finished: dict[str, Pack] = {}
        for reader in store.packs.trusted():
            self._finished[reader.pack.id] = reader.pack
            self._before.add(reader)
        self.pacer = Pacer(store.cipher.name_of, packing)
        self._new = NewPacks(partial(PackWriter, store.packs.folder, store.cipher, most, self.pacer, threads))

    def prepare(self) -> None:
        """Makes the table of the store's chunks, which the first chunk to be placed waits for else."""
        with self._lock:
            self._before.prepare()

    def inherit(self, run: Inherited, chunk_bytes: int) -> bytes:
        """Returns the references of chunks that the parent has, as this image counts the packs."""
        used = [number for number in dict.fromkeys(run.packs) if number != ZEROS]
        with self._lock:
            self._counts.total += run.size(chunk_bytes)
            self._counts.zero += run.zeros(chunk_bytes)
            numbers = {number: self._number_of_finished(run.of.packs[number]) for number in used}
        return references.renumbered(run.references, numbers)

    def _number_of_finished(self, pack: Pack) -> int:
        """Numbers a pack of the store at its first use. The lock is held."""
        self._finished.setdefault(pack.id, pack)
        return self._number_of(pack.id)

    def _number_of(self, pack: str) -> int:
        """Numbers a pack at its first use. The lock is held."""
        return self._numbers.setdefault(pack, len(self._numbers) - 1)

    def place(self, named: Sequence[NamedStretch]) -> Placed:
        """Gives chunks that the store lacks a place in a pack, one behind the other, as they will be read.

        A chunk that the store has in a sparse pack alone waits. Raises OSError, StoreUnusable.
        """
        with self._lock:
            runs, rest = list[Run](), list[NamedPiece]()
            for stretch in named:
                self._divide(stretch, runs, rest)
            placed = self._placed(rest, may_wait=True)
        return replace(placed, runs=runs)

    def _divide(self, named: NamedStretch, runs: list[Run], rest: list[NamedPiece]) -> None:
        """Divides chunks into runs of those that are there, or are zeros, and the rest. The lock is held."""
        sizes, at, start = named.of.sizes, 0, 0
        self._counts.total += len(named.of.memory)
        while at < len(sizes):
            if blocks := [0] * self._zeros(named, at):
                pack = ""
                self._counts.zero += sum(sizes[at : at + len(blocks)])
            elif named.name(at) not in self._here and (
                found := self._before.run(named.names, at, self._usage.is_dense)
            ):
                pack, blocks = found
            if blocks:
                end = at + len(blocks)
                names = named.names[at * NAME_BYTES : end * NAME_BYTES]
                packed = references.packed(names, self._number_of(pack), blocks)
                runs.append(Run(named.of.first + at, packed, named.digests_of(at, end)))
            else:
                rest.append(named.piece(at, start))
                end = at + 1
            start, at = start + sum(sizes[at:end]), end

    def _zeros(self, named: NamedStretch, at: int) -> int:
        """Returns how many chunks from `at` on are zero."""
        end, sizes, name_of_zeros = at, named.of.sizes, self._store.cipher.name_of_zeros
        while end < len(sizes) and named.name(end) == name_of_zeros(sizes[end]):
            end += 1
        return end - at

    def take(self, waiting: Iterable[NamedPiece]) -> None:
        """Counts chunks that wait as used by this image, in each pack that has them."""
        with self._lock:
            for name in {chunk.name for _, chunk in waiting}:
                for pack, block in self._before.places(name):
                    self._usage.take(pack, block)

    def place_waiting(self, waiting: Sequence[NamedPiece]) -> Placed:
        """Places chunks that have waited; those in packs that are sparse even with this image are written again.

        Raises OSError, StoreUnusable.
        """
        with self._lock:
            return self._placed(waiting, may_wait=False)

    def _placed(self, named: Sequence[NamedPiece], may_wait: bool) -> Placed:
        """The lock is held."""
        places: dict[bytes, Place] = {}
        unknown: dict[bytes, memoryview] = {}
        placed: list[NamedPiece] = []
        waiting: list[NamedPiece] = []
        for piece, chunk in named:
            found = self._places(chunk.name)
            place = self._chosen(found)
            if found and not place and may_wait:
                waiting.append((piece, chunk))
                continue
            placed.append((piece, chunk))
            if place:
                places[chunk.name] = place
            else:
                unknown[chunk.name] = piece[1]
        pack, entries = self._new.place([(name, len(data)) for name, data in unknown.items()])
        for entry in entries:
            places[entry.name] = self._here[entry.name] = pack.id, entry.block
        self._counts.written += sum(entry.size for entry in entries)
        brought = [self._brought(piece[0], chunk, *places[chunk.name]) for piece, chunk in placed]
        return Placed(pack, entries, [*unknown.values()], brought, waiting)

    def finish(self) -> None:
        """Finishes this image's packs. No chunk is on its way to a place. Raises OSError."""
        self._count(self._new.finish())

    def turn(self) -> Sequence[Pack]:
        """Finishes the packs so far as `finish`, and begins another. Returns them. Raises OSError."""
        return self._count(self._new.turn())

    def _count(self, finished: Sequence[Pack]) -> Sequence[Pack]:
        self._finished.update((pack.id, pack) for pack in finished)
        self._counts.stored = self.pacer.stored
        return finished

    def abandon(self) -> None:
        """Removes the packs that are not finished. Raises nothing."""
        self._new.abandon()

    def used(self) -> Sequence[Pack]:
        """Returns the packs that the image needs, as its references count them."""
        return [self._finished[pack] for pack in self._numbers if pack]

    def _places(self, name: bytes) -> Sequence[Place]:
        """Returns where a chunk is that is not zeros. The lock is held."""
        if (place := self._here.get(name)) is None:
            return [*self._before.places(name)]
        return [place]

    def _chosen(self, found: Sequence[Place]) -> Place | None:
        """Returns a place that is not in a sparse pack."""
        return next((each for each in found if each[0] in self._new.ids or self._usage.is_dense(each[0])), None)

    def _brought(self, number: int, chunk: Chunk, pack: str, block: int) -> Brought:
        """Numbers the pack at its first use. The lock is held."""
        return Brought(number, chunk, self._number_of(pack), block)
