"""The unfinished file of a pack that a pull brings, and what was compared of it.

One pull at a time brings a pack: it holds a lock of the file. The pack's end comes first, and says which chunks belong
where. So the next pull keeps the right chunks and brings the rest.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from gcr.image.chunks.index import Run
from gcr.image.disk.locking import POLL, is_named
from gcr.image.pack.format import ARRIVING, Pack
from gcr.image.pack.reader import PackReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged


class Arriving(Struct, frozen=True):
    """The file of a pack that comes; `check` is called between two waits, and may raise.

    Everything raises Damaged, WrongImage, StoreUnusable, OSError.
    """

    store: Store
    pack: Pack
    check: Callable[[], object]

    @property
    def path(self) -> Path:
        return self.store.packs.folder / f"{self.pack.id}{ARRIVING}"

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Opens and locks the file; waits for another pull that brings the same pack."""
        while True:
            self.check()
            with self.opened_at_once() as fd:
                if fd is not None:
                    yield fd
                    return
            time.sleep(POLL)

    @contextmanager
    def opened_at_once(self) -> Iterator[int | None]:
        """Opens and locks the file; yields None where another pull brings the same pack."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            is_ours = _is_ours(fd, self.path)
            if is_ours:
                os.utime(fd)  # it is wanted, even if no byte comes this time
            yield fd if is_ours else None
        finally:
            os.close(fd)

    def reader(self) -> PackReader:
        """Raises Damaged unless the end is there, by which the rest can be compared."""
        return PackReader(self.path, self.store.cipher, self.pack.seal)

    def is_begun(self) -> bool:
        """Returns whether the end is there."""
        try:
            self.reader()
        except Damaged:
            return False
        return True

    def has(self, reader: PackReader, run: Run) -> bool:
        """Returns whether an earlier pull has brought these chunks."""
        self.check()
        try:
            reader.read(run, memoryview(bytearray(run.size)))
        except Damaged:
            return False
        return True

    def sync(self, fd: int) -> None:
        """Syncs the file, or removes it: after a failure its bytes are unknown, and the next sync would succeed."""
        try:
            os.fsync(fd)
        except OSError:
            self.path.unlink()
            raise

    def compare(self) -> None:
        """Compares every byte."""
        for _ in self.reader().check():
            self.check()


def put(fd: int, at: int, rest: memoryview) -> None:
    """Writes all bytes at this place. Raises OSError."""
    while rest:
        done = os.pwritev(fd, [rest], at)
        at, rest = at + done, rest[done:]


def _is_ours(fd: int, path: Path) -> bool:
    """Returns whether this process has locked the file, and the file still has this name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return is_named(fd, path)
