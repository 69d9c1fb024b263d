"""A pack: chunks in one file, written once and never changed.

    0        4096                            index             end - 4096
    | header | chunk | chunk |       …       | index           | footer |
               each at a multiple of 4096 bytes, the rest of its last block zero

    index    40 bytes a chunk, in the order they lie there:  name (32) | block (u32) | bytes (u32)
    footer   GCRPACKF | version (u32) | chunks (u32) | index at (u64) | BLAKE3 of the index (32) | BLAKE3 of these (32)

Little-endian; a block is 4096 bytes. So the last 32 bytes of the footer, the pack's *seal*, vouch for every byte of the
file: for the index, by the index for each chunk, and what else there is has one value. A manifest names packs by id and
seal. While it is written a pack is called <id>.pack.new, while it is pulled <id>.pack.part.

In an encrypted store chunks and index are what the store's cipher makes of them; they lie in the same places, but that
the index is longer, and the version says so.
"""

import errno
import logging
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from pathlib import Path
from threading import Lock
from typing import Any, Self

from gcr.errors import Damaged, WrongImage
from gcr.image.bounce import Bounce, buffers, move_each
from gcr.image.chunks import NAME_BYTES, name_of
from gcr.image.cipher import PACK_VERSIONS, Cipher, Forged
from gcr.image.entry import BLOCK, PLACED, Entry, padded, stored_bytes
from gcr.image.regular import open_file, readable
from gcr.image.room import allocate
from gcr.image.together import started

log = logging.getLogger("gcr.image")

ID = re.compile(r"[0-9a-f]{32}\Z")
SUFFIX, UNFINISHED, ARRIVING, DISTRUSTED = ".pack", ".pack.new", ".pack.part", ".pack.bad"
FILE = re.compile(r"([0-9a-f]{32})\.pack(?:\.new|\.part|\.bad)?\Z")  # any of these, of the pack with this id
_HEADER = struct.Struct("<8sI")
_HEADER_MAGIC, _FOOTER_MAGIC = b"GCRPACK\0", b"GCRPACKF"
_FACTS = struct.Struct("<8sIIQ")
_FOOTER = struct.Struct(_FACTS.format + "32s")
_MOST_BLOCKS = 1 << 32
_MOST_INDEX = 2**31 - 1  # bytes: what a library of a cipher takes at once
GROUP_BYTES = 4 << 20  # of chunks that are named and written, or read and compared, at once; or one chunk
ROOM_FROM = 64 << 20  # a pack that is as large gets room ahead of what is written, as much again and at most ROOM_MOST
ROOM_MOST = 4 << 30  # while there is made some, nothing is written
WRITERS = 4  # threads that ask a disk
WAITING = 4  # buffers that are filled meanwhile
_BOUNCE = Bounce()


@dataclass(frozen=True, slots=True)
class Pack:
    """A finished one. `seal`: 32 bytes that vouch for the whole file. `bytes`: of the file."""

    id: str
    seal: bytes
    bytes: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError. What is no id would name a file anywhere."""
        if not ID.match(body["id"]):
            raise ValueError(f"{body['id']!r} is no id of a pack")
        return cls(**{**body, "seal": bytes.fromhex(body["seal"])})


@dataclass(frozen=True, slots=True)
class Footer:
    """The last block of a pack, as it says of itself."""

    facts: bytes
    seal: bytes

    @classmethod
    def from_bytes(cls, block: bytes) -> Self:
        return cls(block[: _FOOTER.size], block[_FOOTER.size : _FOOTER.size + NAME_BYTES])

    def is_sealed(self, seal: bytes) -> bool:
        """It is that of the pack that `seal` vouches for."""
        return self.seal == seal == name_of(self.facts)

    def index_at(self) -> int:
        """Bytes from the beginning of the file."""
        return int(_FOOTER.unpack(self.facts)[3])


class PackWriter:
    """Several threads may add at once. What was added is there for nobody before `finish` has returned."""

    def __init__(self, directory: Path, cipher: Cipher, most: int) -> None:
        """`most`: bytes of the disk that what is written together takes. Raises OSError."""
        self.id = os.urandom(16).hex()
        self._cipher = cipher.pack(self.id)
        self._free = buffers(WRITERS + WAITING, most + BLOCK)
        self._path = directory / f"{self.id}{UNFINISHED}"
        self._final = directory / f"{self.id}{SUFFIX}"
        self._failed: BaseException | None = None
        self._writing = started(WRITERS, "gcr-write")
        try:
            self._file = _File(self._path)
        except BaseException:
            self._writing.shutdown()
            raise
        self._lock = Lock()
        self._placed = bytearray()  # records of all, by their blocks
        self._next = 1  # block; the header has the first

    def place(self, chunks: Sequence[tuple[bytes, int]]) -> Sequence[Entry]:
        """Where chunks go, names and sizes, that `write` brings before `finish`: one after the other.

        Raises OSError where the pack cannot be larger.
        """
        with self._lock:
            entries = []
            for name, size in chunks:
                entries.append(Entry(name, self._next, size))
                self._next += padded(size) // BLOCK
            self._placed += b"".join(PLACED.pack(*entry[:3]) for entry in entries)
            if self._next >= _MOST_BLOCKS or self._cipher.index_bytes(len(self._placed) // PLACED.size) > _MOST_INDEX:
                raise OSError(errno.EFBIG, "a pack cannot be larger", str(self._path))
            self._file.make_room(self._next * BLOCK)
        return entries

    def write(self, entries: Sequence[Entry], data: Sequence[memoryview]) -> None:
        """What was placed together, together: small writes are slow. Nobody looks at `data` any more when it returns.

        What the disk did not take a later `write` says, or `finish`. Raises OSError.
        """
        if self._failed:
            raise self._failed
        if not entries:
            return
        stored = self._free.get()
        try:
            self._cipher.to_disk(entries, data, stored)
            self._writing.submit(self._give, entries[0].block * BLOCK, stored, stored_bytes(entries))
        except BaseException:
            self._free.put(stored)
            raise

    def _give(self, at: int, stored: memoryview, size: int) -> None:
        """To the disk. By threads that do nothing else: it may answer all that it was asked for at once, and has
        nothing to do until the first of them asks again."""
        try:
            if not self._failed:
                self._file.write(at, stored[:size])
        except BaseException as error:
            self._failed = error
        finally:
            self._free.put(stored)

    def finish(self) -> Pack:
        """On the disk, under its final name: the directory is the caller's to sync. Raises OSError."""
        self._writing.shutdown()
        if self._failed:
            raise self._failed
        at, version = self._next * BLOCK, self._cipher.version
        facts = _FACTS.pack(_FOOTER_MAGIC, version, len(self._placed) // PLACED.size, at)
        index = self._cipher.to_index(bytes(self._placed), facts)
        footer = facts + name_of(index)
        seal = name_of(footer)
        self._file.write(0, _whole_blocks(_HEADER.pack(_HEADER_MAGIC, version)))
        self._file.write(at, _whole_blocks(index))
        end = at + padded(len(index))
        self._file.write(end, _whole_blocks(footer + seal))
        self._file.cut(end + BLOCK)
        self._file.sync()
        self._path.rename(self._final)
        self._file.close()
        return Pack(self.id, seal, end + BLOCK)

    def abandon(self) -> None:
        """Nothing of it stays. After `finish` this does nothing."""
        self._writing.shutdown()
        self._file.close()
        self._path.unlink(missing_ok=True)


class PackReader:
    """A finished pack. Raises Damaged when it is not what the seal vouches for, WrongImage for a newer version.

    Its file is open only while something of it is read: an image may have more packs than a process may have files.
    """

    def __init__(self, path: Path, cipher: Cipher, seal: bytes | None = None) -> None:
        """`seal`: what it must be; None takes the file's own. Raises OSError, Damaged, WrongImage."""
        self.path = path
        ours = FILE.match(path.name)
        if not ours:
            raise Damaged.of(path, "a pack has not such a name")
        self._name_of, self._cipher = cipher.name_of, cipher.pack(ours[1])
        self.record = self._cipher.record
        with self.opened() as file:
            self.pack, self.index, self._index_at = self._read_ends(file, seal)

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """Many times larger than `index`, whose bytes they are."""
        return tuple(starmap(Entry, self.record.iter_unpack(self.index)))

    def read(self, entries: Sequence[Entry], targets: Sequence[memoryview]) -> None:
        """Chunks that lie one behind the other. Raises OSError, Damaged."""
        stored = _BOUNCE.buffer(stored_bytes(entries))
        with self.opened() as file:
            file.blocks(entries[0].block, stored)
        self.take(entries, stored, targets)

    def take(self, entries: Sequence[Entry], stored: memoryview, targets: Sequence[memoryview]) -> None:
        """What the disk has of chunks, to where it goes: all of it, once all have the names that they should have.

        Raises Damaged.
        """
        with self._as_written():
            chunks = self._cipher.from_disk(entries, stored)
        for entry, chunk in zip(entries, chunks, strict=True):
            self._check_name(entry, chunk)
        move_each(targets, chunks)

    def check(self) -> Iterator[int]:
        """Every byte of the file; yields the bytes looked at, chunk by chunk. Raises OSError, Damaged."""
        with self.opened() as file:
            yield from self._check(file)

    def _check(self, file: "OpenPack") -> Iterator[int]:
        if file.bytes(0, BLOCK) != _HEADER.pack(_HEADER_MAGIC, self._cipher.version).ljust(BLOCK, b"\0"):
            raise Damaged.of(self.path, "its header is not what was written")
        block = 1
        for entry in self.entries:
            length = padded(entry.size)
            found = memoryview(file.bytes(entry.block * BLOCK, length))
            with self._as_written():
                (chunk,) = self._cipher.from_disk([entry], found)
            self._check_name(entry, chunk)
            if entry.block != block:
                raise Damaged.of(self.path, f"the chunk at block {entry.block} is not where it was written")
            if any(found[entry.size :]):
                raise Damaged.of(self.path, f"there is something behind the chunk at block {entry.block}")
            block += length // BLOCK
            yield length
        self._check_rest(file, block)

    def _check_name(self, entry: Entry, chunk: memoryview) -> None:
        if self._name_of(chunk) != entry.name:
            raise Damaged.of(self.path, f"the chunk at block {entry.block} is not what was written")

    def _check_rest(self, file: "OpenPack", block: int) -> None:
        index = self._cipher.index_bytes(len(self.entries))
        behind = file.bytes(self._index_at + index, padded(index) - index)
        footer = file.bytes(self.pack.bytes - BLOCK, BLOCK)
        if block * BLOCK != self._index_at or any(behind) or any(footer[_FOOTER.size + NAME_BYTES :]):
            raise Damaged.of(self.path, "there is something between what was written")

    def _read_ends(self, file: "OpenPack", seal: bytes | None) -> tuple[Pack, bytes, int]:
        size = os.fstat(file.fd).st_size
        if size < 2 * BLOCK or size % BLOCK:
            raise Damaged.of(self.path, "it is shorter than what was written")
        footer = Footer.from_bytes(bytes(file.bytes(size - BLOCK, _FOOTER.size + NAME_BYTES)))
        magic, version, count, at, index_name = _FOOTER.unpack(footer.facts)
        if magic != _FOOTER_MAGIC or not footer.is_sealed(footer.seal if seal is None else seal):
            raise Damaged.of(self.path, "its footer is not what was written")
        self._check_version(version)
        length = self._cipher.index_bytes(count)
        if at + padded(length) + BLOCK != size:
            raise Damaged.of(self.path, "it is not as long as what was written")
        index = bytes(file.bytes(at, length))
        if name_of(index) != index_name:
            raise Damaged.of(self.path, "its index is not what was written")
        with self._as_written():
            records = self._cipher.from_index(index, footer.facts[: _FACTS.size])
        return Pack(self.path.name.removesuffix(SUFFIX), footer.seal, size), records, at

    def _check_version(self, version: int) -> None:
        if version == self._cipher.version:
            return
        if version in PACK_VERSIONS:
            raise Damaged.of(self.path, "one of it and its store is encrypted, the other is not")
        raise WrongImage(f"{self.path}: a pack of version {version}; this gcr reads {max(PACK_VERSIONS)}")

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        try:
            yield
        except Forged as error:
            raise Damaged.of(self.path, str(error)) from error

    @contextmanager
    def opened(self) -> Iterator["OpenPack"]:
        """Raises OSError, Damaged where it is not there."""
        with ExitStack() as stack:
            try:
                fd = open_file(self.path)
            except FileNotFoundError:
                raise Damaged.of(self.path, "it is not there") from None
            stack.callback(os.close, fd)
            direct = -1
            with suppress(OSError):  # a file system that knows no such reads
                direct = os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, direct)
            yield OpenPack(self.path, fd, direct)


@dataclass(frozen=True, slots=True)
class OpenPack:
    """Read past the page cache where that can be had: `direct`, else -1."""

    path: Path
    fd: int
    direct: int

    def blocks(self, block: int, target: memoryview) -> None:
        """As the disk has them: nobody may trust them yet. Raises OSError, Damaged."""
        at = block * BLOCK
        while target:
            got = self._some(at, target)
            if not got:
                raise Damaged.of(self.path, "it is shorter than what was written")
            at, target = at + got, target[got:]

    def bytes(self, at: int, size: int) -> bytearray:
        """Through the page cache."""
        found = bytearray(size)
        done, view = 0, memoryview(found)
        while done < size:
            with readable(self.path):
                got = os.preadv(self.fd, [view[done:]], at + done)
            if not got:
                raise Damaged.of(self.path, "it is shorter than what was written")
            done += got
        return found

    def _some(self, at: int, target: memoryview) -> int:
        with readable(self.path):
            if self.direct >= 0 and at % BLOCK == 0:
                try:
                    return os.preadv(self.direct, [target], at)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # a disk of larger blocks
                        raise
            return os.preadv(self.fd, [target], at)


def _whole_blocks(data: bytes) -> memoryview:
    """The same bytes, and zeros up to a whole block."""
    stored = _BOUNCE.buffer(padded(len(data)))
    stored[: len(data)] = data
    stored[len(data) :] = bytes(len(stored) - len(data))
    return stored


@dataclass(slots=True)
class _File:
    """Written past the page cache where that can be had."""

    path: Path
    _fd: int = field(init=False, default=-1)
    _direct: int = field(init=False, default=-1)
    _room: int = 0  # bytes that were asked for
    _more: bool = True  # until the file system had none

    def __post_init__(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with suppress(OSError):  # a file system that knows no such writes
            self._direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, at: int, blocks: memoryview) -> None:
        """Whole ones. Raises OSError."""
        while blocks:
            done = self._write_some(at, blocks)
            at, blocks = at + done, blocks[done:]

    def _write_some(self, at: int, blocks: memoryview) -> int:
        if self._direct >= 0 and at % BLOCK == 0:
            try:
                return os.pwritev(self._direct, [blocks], at)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a disk of larger blocks
                    raise
        return os.pwritev(self._fd, [blocks], at)

    def make_room(self, end: int) -> None:
        """For what is written up to `end`, and some more: file systems let writes beyond the end of a file go one by
        one, the disk idle between two, and those within it all at once. One call at a time."""
        if end < ROOM_FROM or end <= self._room or not self._more:
            return
        before, self._room = self._room, end + min(end, ROOM_MOST)
        try:
            allocate(self._fd, before, self._room - before)
        except OSError as error:  # whoever writes finds out whether it is all that is wrong
            log.info("no room ahead in %s: %s", self.path, error)
            self._more = False

    def cut(self, end: int) -> None:
        """What there was room for, and nothing came. Raises OSError."""
        if self._room:
            os.ftruncate(self._fd, end)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        for fd in (self._direct, self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1
