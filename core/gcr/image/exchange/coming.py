"""Packs on their way from several givers: their footers come first, then their indexes, then their chunks.

Each part is compared before it is written, so that a giver that sent wrong bytes is known by its name. The parts that
have come are noted for other nodes (notes.py). Once all parts of a pack are here, the whole pack is compared once more,
from the disk, by several threads, and gets its name. Other packs still come meanwhile.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from gcr.image.chunks.entry import BLOCK, padded
from gcr.image.chunks.index import Run
from gcr.image.exchange.known import Piece
from gcr.image.exchange.notes import Notes
from gcr.image.pack.format import NOTES, SUFFIX, Footer
from gcr.image.pack.reader import PackReader
from gcr.image.remote.arriving import Arriving, put
from gcr.image.remote.transfer import Transfer
from gcr.imageerrors import Damaged

LEAST_PIECE, MOST_PIECE = 1 << 20, 8 << 20  # bytes, but for a chunk that is larger
PIECE_AHEAD = 4 << 20  # bytes of a piece of a pack that comes ahead of its image: of such a pack several come at once
_OF_AN_INDEX = 4 << 10  # bytes of a pack to each byte of its index: 64 for a chunk of 256 KiB, more than any has
_OF_ALL = 256 << 20  # bytes of one piece of each giver
_PIECES, _PIECES_OF_ONE = 512, 64  # of an image; more of a large one


def piece_bytes(total: int, givers: int) -> int:
    """Returns the size of the pieces of an image of so many bytes: enough of them to be spread over the givers.

    One giver alone sends larger ones: each costs a pull 0.6 ms in its event loop, whatever its size. Many send smaller
    ones: each giver is asked for one at the same time.
    """
    most = min(MOST_PIECE, _OF_ALL // max(givers, 1))
    return max(LEAST_PIECE, min(most, total // (_PIECES if givers > 1 else _PIECES_OF_ONE)))


class ComingPack:
    """One pack, open for this pull alone within the stack. Everything raises Damaged, WrongImage, OSError."""

    def __init__(self, arriving: Arriving, fd: int, transfer: Transfer, stack: ExitStack) -> None:
        """`fd`: of the locked file (Arriving.opened)."""
        self.arriving, self._fd, self._transfer = arriving, fd, transfer
        self.pack = arriving.pack
        notes = arriving.path.with_name(f"{self.pack.id}{NOTES}")
        self._notes = Notes(notes, self.pack.seal)
        stack.callback(self._notes.close)
        self._footer: Footer | None = None
        self._reader: PackReader | None = None
        self.left = 1  # pieces that are missing

    def is_there(self) -> bool:
        """Returns whether another pull has brought the pack meanwhile; the unfinished file goes then."""
        if not self.arriving.store.packs.has(self.pack):
            return False
        self.arriving.path.unlink()
        return True

    @property
    def reader(self) -> PackReader | None:
        """Returns the reader of the file, once the end is here."""
        return self._reader

    def begin(self) -> None:
        """Finds what an earlier pull has left: the end of the pack, or nothing."""
        try:
            self._read_end()
        except Damaged:
            os.ftruncate(self._fd, 0)

    def footer_pieces(self, with_index: bool = False) -> Sequence[Piece]:
        """Returns the piece of the footer; or of the end of the pack, which has an index of chunks of a usual size."""
        end = BLOCK + padded(self.pack.bytes // _OF_AN_INDEX)
        size = min(end if with_index else BLOCK, self.pack.bytes)
        return [] if self._reader else [Piece(self.pack, self.pack.bytes - size, size, self._take_footer)]

    def index_pieces(self) -> Sequence[Piece]:
        if self._reader or not self._footer:
            return []
        at = self._footer.index_at()
        return [Piece(self.pack, at, self.pack.bytes - BLOCK - at, self._take_index)]

    def chunk_pieces(self, size: int) -> Sequence[Piece]:
        """Returns the pieces of chunks that are missing, of `size` bytes or fewer; notes the others."""
        try:
            return self._chunk_pieces(self._whole_reader(), size)
        except Damaged:  # an index that no pack has: a seal vouches for any
            self.arriving.path.unlink()
            raise

    def _chunk_pieces(self, reader: PackReader, size: int) -> Sequence[Piece]:
        found = list[Piece]()
        put(self._fd, 0, memoryview(reader.header()))
        self._transfer.skip(BLOCK)
        begun = not self._footer
        if begun:
            self._transfer.skip(self.pack.bytes - reader.index_at)
        for run in reader.runs(0, len(reader.chunks), size):
            block, length = reader.extent(run)
            if begun and self.arriving.has(reader, run):
                self._transfer.skip(length)
                self._notes.add(block * BLOCK, length)
            else:
                found.append(self._piece(run, block * BLOCK, length))
        self.left = len(found)
        return found

    def comparisons(self) -> Sequence[Callable[[], object]]:
        """Syncs the file, all parts of which are here. Returns the steps that compare every byte of it on the disk."""
        self.arriving.sync(self._fd)
        return [partial(self._compare, step) for step in self.arriving.reader().steps()]

    def _compare(self, step: Callable[[], object]) -> None:
        self.arriving.check()
        step()

    def discard(self) -> None:
        """Removes the file: it is not the pack."""
        self.arriving.path.unlink()

    def finish(self) -> None:
        """Gives the file, which was compared, the pack's name."""
        self.arriving.store.packs.take(self.arriving.path, self.pack)

    def _piece(self, run: Run, at: int, size: int) -> Piece:
        def take(data: memoryview) -> None:
            self._whole_reader().compare_stored(run, data)
            self._keep(at, data)

        return Piece(self.pack, at, size, take)

    def _take_footer(self, data: memoryview) -> None:
        last = data[-BLOCK:]
        footer = Footer.from_bytes(bytes(last))
        right = footer.is_sealed(self.pack.seal) and footer.bounds(self.pack.bytes)
        if not right or any(last[len(footer.facts) + len(footer.seal) :]):
            raise Damaged.of(f"{self.pack.id}{SUFFIX}", "its footer is not what was pushed")
        self._footer = footer
        put(self._fd, self.pack.bytes - BLOCK, last)
        if BLOCK <= (before := self.pack.bytes - footer.index_at()) <= len(data):
            self._take_index(data[-before:-BLOCK])

    def _take_index(self, data: memoryview) -> None:
        """The file is as long as the pack by now: its footer came before."""
        at = self.pack.bytes - BLOCK - len(data)
        put(self._fd, at, data)
        self._read_end()

    def _read_end(self) -> None:
        reader = self.arriving.reader()
        reader.compare_end()
        self._reader = reader
        self._notes.add(reader.index_at, self.pack.bytes - reader.index_at)

    def _keep(self, at: int, data: memoryview) -> None:
        put(self._fd, at, data)
        self._notes.add(at, len(data))

    def _whole_reader(self) -> PackReader:
        assert self._reader, "the chunks of a pack come after its end"
        return self._reader
