"""Writes a pack: the threads that add chunks fill buffers, and a few other threads write these to the disk.

A pack in memory, as in a store in /dev/shm, takes chunks from where they lie: there is no disk to keep busy. The
threads that add chunks encrypt and write them there.

These threads compress chunks as well, if that was asked for (layout.py).
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK, MOST_BLOCKS, PLACED, Entry, padded, stored_bytes
from gcr.image.crypto.cipher import COMPRESSED, Cipher
from gcr.image.disk.bounce import Bounce, buffers, together
from gcr.image.disk.room import allocate, is_memory
from gcr.image.disk.threads import started
from gcr.image.pack.format import FACTS, FOOTER_MAGIC, HEADER, HEADER_MAGIC, SUFFIX, UNFINISHED, Pack
from gcr.image.pack.layout import LAID, NewLayout
from gcr.image.pack.pace import Pacer

log = logging.getLogger("gcr.image")

_MOST_INDEX = 2**31 - 1  # bytes of one message to the cipher's library
ROOM_FROM = 64 << 20  # a pack of this size reserves room ahead: as much again, at most ROOM_MOST
ROOM_MOST = 4 << 30  # nothing is written while room is reserved
WRITERS = 4  # threads that write to the disk
WAITING = 4  # more buffers, which are filled meanwhile, and the most threads that fill them
IN_MEMORY = 2  # the most threads that add to one of several packs in memory: one encrypts while the other writes
_BOUNCE = Bounce()


class PackWriter:
    """Writes one pack. Several threads may add at once. No reader sees a chunk before `finish` has returned.

    filling: threads of this pack, on which the caller has `write` work
    """

    def __init__(
        self, directory: Path, cipher: Cipher, most: int, pacer: Pacer | None = None, threads: int = WAITING
    ) -> None:
        """Raises OSError.

        most: the largest size of chunks that are written together · pacer: None: one for this pack alone
        threads: that add chunks
        """
        self.id = os.urandom(16).hex()
        self._cipher = cipher.pack(self.id)
        self.pacer = pacer or Pacer(cipher.name_of, "plain")
        self._path = directory / f"{self.id}{UNFINISHED}"
        self._failed: BaseException | None = None
        self._layout = NewLayout()
        self._lock = Lock()
        self._placed = bytearray()  # records of all chunks, in the order of their blocks
        self._next = 1  # the next free block; the header has the first
        with ExitStack() as unless_begun:
            self._file = _File(self._path)
            unless_begun.callback(self._remove)
            self._behind = None if self._file.in_memory else _Behind(most + BLOCK)
            unless_begun.callback(self._close_behind)
            most_threads = IN_MEMORY if self.may_be_one_of_several else WAITING
            self.filling = started(min(threads, most_threads), "gcr-fill")
            unless_begun.pop_all()

    @property
    def placed_bytes(self) -> int:
        """Returns how much its chunks take, were none compressed."""
        return (self._next - 1) * BLOCK

    @property
    def may_be_one_of_several(self) -> bool:
        """Returns whether another pack beside it makes an image faster: two files in memory are written at once."""
        return self._file.in_memory and not self.pacer.compresses

    def place(self, chunks: Sequence[tuple[bytes, int]]) -> Sequence[Entry]:
        """Returns the places of chunks, given by name and size, one behind the other; `write` must bring them later.

        Raises OSError if the pack cannot be larger.
        """
        with self._lock:
            entries = []
            for name, size in chunks:
                entries.append(Entry(name, self._next, size))
                self._next += padded(size) // BLOCK
            self._placed += b"".join(PLACED.pack(*entry[:3]) for entry in entries)
            count = len(self._placed) // PLACED.size
            index = self._cipher.index_bytes(count) + (count * LAID.size if self.pacer.compresses else 0)
            if self._next >= MOST_BLOCKS or index > _MOST_INDEX:
                raise OSError(errno.EFBIG, "a pack cannot be larger", str(self._path))
            if not self.pacer.compresses:
                self._file.make_room(self._next * BLOCK)
        return entries

    def write(self, entries: Sequence[Entry], data: Sequence[memoryview]) -> None:
        """Writes chunks that were placed together; small writes are slow. `data` is free when this returns.

        A failure of the disk is raised by a later `write`, or by `finish`. Raises OSError.
        """
        if self._failed:
            raise self._failed
        if not entries:
            return
        at, entries, data = self._packed(entries, data)
        if self._behind:
            fill = partial(self._cipher.to_disk, entries, data)
            self._behind.give(fill, partial(self._store, at * BLOCK, stored_bytes(entries)))
        elif self._cipher.is_plain:
            self._put(stored_bytes(entries), _stretches(at * BLOCK, data))
        else:
            size = stored_bytes(entries)
            stored = _BOUNCE.buffer(size + BLOCK)
            self._cipher.to_disk(entries, data, stored)
            self._put(size, [(at * BLOCK, stored[:size])])

    def _packed(
        self, entries: Sequence[Entry], data: Sequence[memoryview]
    ) -> tuple[int, Sequence[Entry], Sequence[memoryview]]:
        """Returns the chunks as they are to lie in the pack, from which block on, with their sizes there."""
        packed = self.pacer.packed(entries, data)
        if packed is None:
            return entries[0].block, entries, data
        there = [entry._replace(size=len(piece)) for entry, piece in zip(entries, packed.data, strict=True)]
        at = self._layout.lay(there, packed.digests)
        with self._lock:
            self._file.make_room(self._layout.end * BLOCK)
        return at, there, packed.data

    def _put(self, size: int, stretches: Iterable[tuple[int, memoryview]]) -> None:
        """Writes to a pack in memory, `size` bytes in all. What follows a chunk in its last block is zero there."""
        try:
            with self._file.alone, self.pacer.disk.busy(size):
                for at, some in stretches:
                    self._file.write(at, some)
        except BaseException as error:
            self._failed = error
            raise

    def _store(self, at: int, size: int, stored: memoryview) -> None:
        """Writes a buffer to the disk, on a thread that does nothing else.

        The disk may answer all requests at once; it is idle until the first of these threads asks again.
        """
        try:
            if not self._failed:
                with self.pacer.disk.busy(size):
                    self._file.write(at, stored[:size])
        except BaseException as error:
            self._failed = error

    def finish(self) -> Pack:
        """Syncs the pack and gives it its final name; the caller syncs the directory. Raises OSError."""
        found = self.end()
        self.publish()
        return found

    def end(self) -> Pack:
        """Writes what comes behind the chunks, and syncs the pack. Nothing can be added any more. Raises OSError."""
        self._end_threads()
        if self._failed:
            raise self._failed
        at, version, beside = self._next * BLOCK, self._cipher.version, b""
        if self.pacer.compresses:
            at, version = self._layout.end * BLOCK, version + COMPRESSED
            beside = self._layout.records(block for _, block, _ in PLACED.iter_unpack(self._placed))
        facts = FACTS.pack(FOOTER_MAGIC, version, len(self._placed) // PLACED.size, at)
        index = self._cipher.to_index(bytes(self._placed), facts, beside)
        footer = facts + name_of(index)
        seal = name_of(footer)
        self._file.write(0, _whole_blocks(HEADER.pack(HEADER_MAGIC, version)))
        self._file.write(at, _whole_blocks(index))
        end = at + padded(len(index))
        self._file.write(end, _whole_blocks(footer + seal))
        self._file.cut(end + BLOCK)
        with self.pacer.disk.busy(0):
            self._file.sync()
        return Pack(self.id, seal, end + BLOCK)

    def publish(self) -> None:
        """Gives a pack that has its end its final name; the caller syncs the directory. Raises OSError."""
        self._path.rename(self._path.with_name(f"{self.id}{SUFFIX}"))
        self._file.close()

    def abandon(self) -> None:
        """Removes the unfinished file. After `finish` this does nothing.

        It raises nothing, since an image without this pack may exist by now: the next clean-up removes the file.
        """
        self._end_threads()
        self._remove()

    def _end_threads(self) -> None:
        self.filling.shutdown()
        self._close_behind()

    def _close_behind(self) -> None:
        if self._behind:
            self._behind.close()

    def _remove(self) -> None:
        self._file.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s is left for the next clean-up: %s", self._path, error)


class _Behind:
    """Buffers, and a few threads that write them to the disk while others are filled. Thread-safe."""

    def __init__(self, size: int) -> None:
        """`size`: of a buffer. Raises OSError."""
        self.free = buffers(WRITERS + WAITING, size)
        self._writing = started(WRITERS, "gcr-write")

    def give(self, fill: Callable[[memoryview], object], store: Callable[[memoryview], object]) -> None:
        """Fills a buffer, and has it stored by one of the threads. `store` raises nothing."""
        stored = self.free.get()
        try:
            fill(stored)
            self._writing.submit(self._store, store, stored)
        except BaseException:
            self.free.put(stored)
            raise

    def _store(self, store: Callable[[memoryview], object], stored: memoryview) -> None:
        try:
            store(stored)
        finally:
            self.free.put(stored)

    def close(self) -> None:
        """Waits until everything is stored. Nothing can be given any more."""
        self._writing.shutdown()


def _stretches(at: int, data: Sequence[memoryview]) -> Iterator[tuple[int, memoryview]]:
    """Yields the chunks with their places in the file; those that lie side by side in memory and there are one."""
    begin, last = at, memoryview(b"")
    for piece in data:
        if last and len(last) % BLOCK == 0 and (both := together(last, piece)):
            last = both
            continue
        if last:
            yield begin, last
        begin += padded(len(last))
        last = piece
    yield begin, last


def _whole_blocks(data: bytes) -> memoryview:
    """Returns the bytes with zeros up to a whole block."""
    stored = _BOUNCE.buffer(padded(len(data)))
    stored[: len(data)] = data
    stored[len(data) :] = bytes(len(stored) - len(data))
    return stored


@dataclass(slots=True)
class _File:
    """A new file, written past the page cache if the file system can. `in_memory`: it lies on no disk.

    alone: the kernel lets one writer at a time into a file in memory; a thread that waits here takes no processor
    """

    path: Path
    in_memory: bool = field(init=False)
    alone: Lock = field(default_factory=Lock)
    _fd: int = field(init=False, default=-1)
    _direct: int = field(init=False, default=-1)
    _room: int = 0  # bytes that are reserved
    _more: bool = True  # until the file system refused

    def __post_init__(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.in_memory = is_memory(self._fd)
        with suppress(OSError):  # the file system may know no such writes
            self._direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, at: int, blocks: memoryview) -> None:
        """Writes whole blocks; to a file in memory any bytes. Raises OSError."""
        while blocks:
            done = self._write_some(at, blocks)
            at, blocks = at + done, blocks[done:]

    def _write_some(self, at: int, blocks: memoryview) -> int:
        if self._direct >= 0 and at % BLOCK == 0 and not self.in_memory:
            try:
                return os.pwritev(self._direct, [blocks], at)
            except OSError as error:
                if error.errno != errno.EINVAL:  # the disk has larger blocks
                    raise
        return os.pwritev(self._fd, [blocks], at)

    def make_room(self, end: int) -> None:
        """Reserves room up to `end`, and some more. One call at a time.

        File systems pass writes beyond the end of a file on one by one, and leave the disk idle between two. Writes
        within the file go all at once. Memory has no such pause, and what is reserved there is made.
        """
        if self.in_memory:
            return
        if end < ROOM_FROM or end <= self._room or not self._more:
            return
        before, self._room = self._room, end + min(end, ROOM_MOST)
        try:
            allocate(self._fd, before, self._room - before)
        except OSError as error:  # the next write tells whether more is wrong
            log.info("no room ahead in %s: %s", self.path, error)
            self._more = False

    def cut(self, end: int) -> None:
        """Frees the room beyond `end` that was reserved and not used. Raises OSError."""
        if self._room:
            os.ftruncate(self._fd, end)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        for fd in (self._direct, self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1
