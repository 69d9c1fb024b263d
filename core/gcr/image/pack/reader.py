"""Reads finished packs."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path

from msgspec import Struct

from gcr.image.chunks.chunk import NAME_BYTES, name_of
from gcr.image.chunks.entry import BLOCK, as_stored, padded
from gcr.image.chunks.index import Index, Run
from gcr.image.crypto.cipher import COMPRESSED, PACK_VERSIONS, Cipher, Forged
from gcr.image.disk.bounce import Bounce, address_of, copy_all, move_each
from gcr.image.disk.failing import readable
from gcr.image.disk.pagecache import is_cached
from gcr.image.disk.regular import open_file
from gcr.image.pack.codec import WrongCode, decode
from gcr.image.pack.format import (
    FACTS,
    FILE,
    FOOTER,
    FOOTER_MAGIC,
    GROUP_BYTES,
    HEADER,
    HEADER_MAGIC,
    SUFFIX,
    Footer,
    Pack,
)
from gcr.image.pack.layout import DIGEST_BYTES, LAID, Laid, Layout
from gcr.imageerrors import Damaged, WrongImage

_BOUNCE, _DECODED = Bounce(), Bounce()


class PackReader:
    """Reads a finished pack. Raises Damaged if it is not the one that the seal vouches for, WrongImage if it is newer.

    Its file is open only during a read: an image may have more packs than a process may have open files.
    """

    def __init__(self, path: Path, cipher: Cipher, seal: bytes | None = None) -> None:
        """Reads footer and index. `seal`: the expected one, None: any. Raises OSError, Damaged, WrongImage."""
        self.path = path
        ours = FILE.match(path.name)
        if not ours:
            raise Damaged.of(path, "a pack has not such a name")
        self._name_of, self._names_of, self._cipher = cipher.name_of, cipher.names_of, cipher.pack(ours[1])
        self.record = self._cipher.record
        with self.opened() as file:
            self.pack, self.index, self._beside, self.index_at = self._read_ends(file, seal)

    @cached_property
    def chunks(self) -> Index:
        """Returns the chunks by number. Raises Damaged for an index that no pack has: a seal vouches for any."""
        with self._sensible():
            return Index(self.index, self.record, None if self.is_compressed else self.index_at)

    @cached_property
    def _layout(self) -> Layout | None:
        """Returns the places of compressed chunks; None where they lie at their blocks. Raises Damaged."""
        with self._sensible():
            return Layout(self._beside, self.chunks, self.index_at) if self.is_compressed else None

    def runs(self, first: int, end: int, most: int) -> Iterator[Run]:
        """Yields chunks, by their numbers, in runs that lie one behind the other and have `most` bytes or fewer.

        A run of one chunk may have more. Only such runs can be read.
        """
        for run in Run(self.chunks, first, end).groups(most):
            yield from self._layout.runs(run) if self._layout else (run,)

    def extent(self, run: Run) -> tuple[int, int]:
        """Returns the block where a run begins in the file, and how many bytes it takes there."""
        return self._layout.extent(run) if self._layout else (run.block, run.stored_bytes)

    def read(self, run: Run, target: memoryview) -> None:
        """Reads chunks; they have as many bytes as the target. Raises OSError, Damaged, LibraryMissing."""
        block, size = self.extent(run)
        stored = _BOUNCE.buffer(size)
        with self.opened() as file:
            file.blocks(block, stored)
        self.take(run, stored, target)

    def take(self, run: Run, stored: memoryview, target: memoryview) -> None:
        """Decrypts and decompresses chunks that were read, compares each with its name, then copies all of them.

        Raises Damaged before it copies anything; LibraryMissing.
        """
        plain = self.compared(run, stored)
        copy_all(run.pieces(plain), target)

    def fits(self, run: Run, target: memoryview) -> bool:
        """Returns whether the run lies in the pack as it will in the target, so that `blocks` may read it into that."""
        as_it_is = self._cipher.is_plain and self._layout is None
        return as_it_is and run.stored_bytes == run.size == len(target) and not address_of(target) % BLOCK

    def compared(self, run: Run, stored: memoryview) -> memoryview:
        """Returns chunks that were read, as they would lie if nothing were compressed: `stored` where that `fits`.

        Raises Damaged unless each is what its name says; LibraryMissing.
        """
        laid = self._layout.laid(run) if self._layout else None
        with self._as_written():
            plain = self._cipher.from_disk(laid or run, stored)
            if laid:
                plain = self._decoded(run, laid, plain)
        names, expected = self._names_of(plain, run.starts, run.sizes), run.names
        if names != b"".join(expected):
            wrong = next(at for at, name in enumerate(expected) if names[at * NAME_BYTES :][:NAME_BYTES] != name)
            block = run.index.borders[run.first + wrong]
            raise Damaged.of(self.path, f"the chunk at block {block} is not what was written")
        return plain

    def compare_stored(self, run: Run, stored: memoryview) -> None:
        """Compares every byte of a run that was read. Raises Damaged, LibraryMissing."""
        self.compared(run, stored)
        entries = self._layout.laid(run).entries if self._layout else run.entries
        for entry, blocks in zip(entries, as_stored(entries, stored), strict=True):
            if any(blocks[entry.size :]):
                raise Damaged.of(self.path, f"there is something behind the chunk at block {entry.block}")

    def _decoded(self, run: Run, laid: Laid, stored: memoryview) -> memoryview:
        """Returns the chunks decompressed. No byte gets to the codec before it was compared. Raises Forged."""
        memory = _DECODED.buffer(run.stored_bytes)
        pieces = zip(laid.entries, laid.digests, laid.chunks(stored), run.chunks(memory), strict=True)
        for entry, digest, piece, target in pieces:
            if len(piece) == len(target):
                move_each([target], [piece])
                continue
            if self._name_of(piece)[:DIGEST_BYTES] != digest:
                raise Forged(f"the chunk at block {entry.block} is not what was written")
            try:
                target[:] = decode(piece, len(target))
            except WrongCode as error:
                raise Forged(f"the chunk at block {entry.block}: {error}") from error
        return memory

    def check(self) -> Iterator[int]:
        """Compares every byte of the file on the disk; yields the bytes compared, part by part.

        Raises OSError, Damaged, LibraryMissing.
        """
        return (step() for step in self.steps())

    def steps(self) -> Iterator[Callable[[], int]]:
        """Yields steps that together compare every byte of the file on the disk; each returns the bytes compared.

        Several threads may take them at once. They raise as `check`.
        """
        with self.opened() as file:
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the disk is to answer, not the page cache
        yield self._compare_header
        for run in self.runs(0, len(self.chunks), GROUP_BYTES):
            yield partial(self._compare_run, run)
        yield self._compare_rest

    def compare_end(self) -> None:
        """Compares every byte of the file behind its chunks. Raises OSError, Damaged."""
        self._compare_rest()

    def _compare_header(self) -> int:
        with self.opened() as file:
            if file.bytes(0, BLOCK) != self.header():
                raise Damaged.of(self.path, "its header is not what was written")
        return 0

    def _compare_run(self, run: Run) -> int:
        block, size = self.extent(run)
        stored = _BOUNCE.buffer(size)
        with self.opened() as file:
            file.fill(block * BLOCK, stored)
        self.compare_stored(run, stored)
        return size

    def _compare_rest(self) -> int:
        with self.opened() as file:
            self._check_rest(file)
        return 0

    def header(self) -> bytes:
        """Returns the first block, of which the end leaves no choice."""
        return HEADER.pack(HEADER_MAGIC, self.version).ljust(BLOCK, b"\0")

    def _check_rest(self, file: "OpenPack") -> None:
        index = self._cipher.index_bytes(len(self.chunks)) + len(self._beside)
        behind = file.bytes(self.index_at + index, padded(index) - index)
        footer = file.bytes(self.pack.bytes - BLOCK, BLOCK)
        if any(behind) or any(footer[FOOTER.size + NAME_BYTES :]):
            raise Damaged.of(self.path, "there is something between what was written")

    def _read_ends(self, file: "OpenPack", seal: bytes | None) -> tuple[Pack, bytes, bytes, int]:
        size = os.fstat(file.fd).st_size
        if size < 2 * BLOCK:
            raise Damaged.of(self.path, "it is shorter than what was written")
        if size % BLOCK:
            raise Damaged.of(self.path, "it is not as long as what was written")
        footer = Footer.from_bytes(bytes(file.bytes(size - BLOCK, FOOTER.size + NAME_BYTES)))
        magic, version, count, at, index_name = FOOTER.unpack(footer.facts)
        if magic != FOOTER_MAGIC or not footer.is_sealed(footer.seal if seal is None else seal):
            raise Damaged.of(self.path, "its footer is not what was written")
        self._check_version(version)
        self.version, self.is_compressed = version, version != self._cipher.version
        length = self._cipher.index_bytes(count) + (count * LAID.size if self.is_compressed else 0)
        if at + padded(length) + BLOCK != size or not footer.bounds(size):
            raise Damaged.of(self.path, "it is not as long as what was written")
        index = bytes(file.bytes(at, length))
        if name_of(index) != index_name:
            raise Damaged.of(self.path, "its index is not what was written")
        with self._as_written():
            records = self._cipher.from_index(index, footer.facts[: FACTS.size])
        own = count * self.record.size
        return Pack(self.path.name.removesuffix(SUFFIX), footer.seal, size), records[:own], records[own:], at

    def _check_version(self, version: int) -> None:
        if version in (self._cipher.version, self._cipher.version + COMPRESSED):
            return
        if version in PACK_VERSIONS:
            raise Damaged.of(self.path, "one of it and its store is encrypted, the other is not")
        raise WrongImage(f"{self.path}: a pack of version {version}; this gcr reads {max(PACK_VERSIONS)}")

    @contextmanager
    def _sensible(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise Damaged.of(self.path, f"its index is that of no pack: {error}") from error

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        try:
            yield
        except Forged as error:
            raise Damaged.of(self.path, str(error)) from error

    @contextmanager
    def opened(self) -> Iterator["OpenPack"]:
        """Opens the file within the block. Raises OSError; Damaged if it is not there."""
        with ExitStack() as stack:
            try:
                fd = open_file(self.path)
            except FileNotFoundError:
                raise Damaged.of(self.path, "it is not there") from None
            stack.callback(os.close, fd)
            direct = -1
            with suppress(OSError):  # the file system may know no such reads
                direct = os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, direct)
            yield OpenPack(self.path, fd, direct)


class OpenPack(Struct, frozen=True):
    """An open pack. `direct`: a descriptor that reads past the page cache, or -1.

    Bytes that the page cache has are taken from there, and no others are brought there.
    """

    path: Path
    fd: int
    direct: int

    def is_cached(self, block: int, size: int) -> bool:
        """Returns whether blocks of so many bytes are read from the page cache, and from no disk."""
        return self.direct < 0 or is_cached(self.fd, block * BLOCK, size)

    def blocks(self, block: int, target: memoryview) -> None:
        """Reads blocks that are not compared yet. Raises OSError, Damaged."""
        at = block * BLOCK
        while target:
            got = self._some(at, target)
            if not got:
                raise Damaged.of(self.path, "it is shorter than what was written")
            at, target = at + got, target[got:]

    def bytes(self, at: int, size: int) -> bytearray:
        """Reads bytes through the page cache. Raises OSError, Damaged."""
        found = bytearray(size)
        self.fill(at, memoryview(found))
        return found

    def fill(self, at: int, target: memoryview) -> None:
        """Reads bytes through the page cache. Raises OSError, Damaged."""
        while target:
            with readable(self.path):
                got = os.preadv(self.fd, [target], at)
            if not got:
                raise Damaged.of(self.path, "it is shorter than what was written")
            at, target = at + got, target[got:]

    def _some(self, at: int, target: memoryview) -> int:
        with readable(self.path):
            if self.direct >= 0 and at % BLOCK == 0 and not is_cached(self.fd, at, len(target)):
                try:
                    return os.preadv(self.direct, [target], at)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # the disk has larger blocks
                        raise
            return os.preadv(self.fd, [target], at)
