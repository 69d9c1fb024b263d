"""The lock of a store, and the claim of an image's name: both are taken back by the kernel from a process that dies.

A child that is forked meanwhile closes its descriptors of them: else they would outlive the process that holds them.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from gcr.imageerrors import ImageExists, RunBusy, StoreBusy

LOCK = "lock"
POLL = 0.05


class Held:
    """The descriptor of a file that this process has locked, or will. Its child has it closed, as -1."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _all_held.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_all_held: "WeakSet[Held]" = WeakSet()


def _close_all() -> None:
    for each in [*_all_held]:
        each.close()


os.register_at_fork(after_in_child=_close_all)


@contextmanager
def locked(store: Path, how: int, patience: float | None) -> Iterator[None]:
    """Holds the lock of the store in this folder. Raises StoreBusy after `patience` seconds (None: never), OSError."""
    held = Held(_opened(store / LOCK, how))
    try:
        _lock(held.fd, how, patience)
        yield
    finally:
        held.close()


@contextmanager
def packs_locked(mark: Path, how: int, patience: float | None) -> Iterator[None]:
    """Holds the lock of a store's packs, which is on its mark: shared while peers read them, alone to remove them.

    One that removes packs holds the lock of the store first. Raises as `locked`; FileNotFoundError without a mark.
    """
    held = Held(os.open(mark, (os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        _lock(held.fd, how, patience)
        yield
    finally:
        held.close()


@contextmanager
def running(lock: Path, run: str, patience: float | None = 0.0) -> Iterator[None]:
    """Holds a lock file of a run, which stays, empty.

    Raises RunBusy if it is held for longer than `patience` seconds (None: for ever); OSError.
    """
    held = Held(_opened(lock, fcntl.LOCK_EX))
    try:
        try:
            _lock(held.fd, fcntl.LOCK_EX, patience)
        except StoreBusy:
            raise RunBusy(f"the run {run!r} is being written to already, by the holder of {lock}") from None
        yield
    finally:
        held.close()


def _opened(lock: Path, how: int) -> int:
    """Opens the lock's file. A reader of a disk that cannot be written to opens it read-only."""
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or how != fcntl.LOCK_SH:
            raise
    return os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _lock(fd: int, how: int, patience: float | None) -> None:
    end = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, how | (0 if end is None else fcntl.LOCK_NB))
        except BlockingIOError:
            if end is None or time.monotonic() >= end:
                raise StoreBusy("another process is at work in the store") from None
            time.sleep(POLL)


def claim(fd: int, path: Path, name: str) -> None:
    """Locks the file of a manifest that is to be written. Raises ImageExists if another process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_named(fd, path):
            return
    except BlockingIOError:
        pass
    raise ImageExists(f"an image {name!r} is being written just now") from None  # or was published just now


def unclaim(fd: int, path: Path) -> None:
    """Removes a claimed file, unless it is another process's by now."""
    if is_named(fd, path):
        path.unlink()


def is_named(fd: int, path: Path) -> bool:
    """Returns whether the file of this descriptor still has this name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
