"""The seat of a daemon: locks of the kernel and the listening socket. One process at a time has it.

Two files are locked: one in the daemon's folder, which outlives the runtime directory, and one beside the socket, which
all starters meet, also with different state directories. Both are locked before the socket is touched, and until the
process ends. The kernel releases them when the process ends in any way.
"""

import errno
import fcntl
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Self

from msgspec import Struct

from gcr.errors import DaemonUnavailable, DeadlinePassed
from gcr.protocol.seqpacket import connect, listen
from gcr.rendezvous.folder import DaemonFolder
from gcr.runtime import check_own_directory, check_unshared_directory, own_directory

log = logging.getLogger("gcr.daemon")

PATIENCE = 15.0  # seconds that a daemon may take to end, or to serve again
PASSING = 2.0  # within which a starter that meets one of our locks lets go of the other
LOOK_EVERY = 0.02
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some file systems have none


class SeatTaken(Exception):
    """Another daemon has the seat; the text says how it was met."""


class Lock(Struct):
    """A lock on a file, held until the process ends or `release`."""

    path: Path
    fd: int = -1

    def take(self) -> bool:
        """False while another process holds it. Raises OSError."""
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                locked = _locked(fd)
                if locked and not _leads_to(self.path, fd):  # removed between open and lock
                    continue
                if locked:
                    self.fd, fd = fd, -1
                return locked
            finally:
                if fd >= 0:
                    os.close(fd)

    @property
    def stands(self) -> bool:
        """Returns whether the path still leads to the locked file, so that every starter meets it."""
        return self.fd >= 0 and _leads_to(self.path, self.fd)

    def retake(self) -> bool:
        """Lock the file that is at the path now. The old one stays locked where that fails. Raises OSError."""
        before = self.fd
        if not self.take():
            return False
        if before >= 0:
            os.close(before)
        return True

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True)
class Seat:
    """Made by `take`. `listener` is the socket that the path leads to.

    shared: other users may connect to it, and enter its directory.
    """

    path: Path
    folder: DaemonFolder
    listener: socket
    locks: tuple[Lock, ...]
    shared: bool = False
    _inode: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._inode = _inode_at(self.path)

    @classmethod
    def take(
        cls,
        path: Path,
        folder: DaemonFolder,
        patience: float = PATIENCE,
        succeeds: bool = False,
        shared: bool = False,
    ) -> Self:
        """Wait for a daemon that is about to end. Raises SeatTaken, UnsafeRuntime, OSError.

        succeeds: also for one that serves still, and was asked to hand over.
        """
        (check_unshared_directory if shared else check_own_directory)(path.parent)
        folder.make(path)
        locks = (Lock(folder.lock), Lock(_lock_beside(path)))
        end = time.monotonic() + patience
        while not _all_taken(locks):
            if not succeeds and _serves(path):
                raise SeatTaken("another daemon serves")
            if time.monotonic() > end:
                raise SeatTaken(f"another daemon has held its lock for {patience:g} s and does not serve")
            time.sleep(LOOK_EVERY)
        try:
            listener = listen(path, shared)
            return cls(path, folder, listener, locks, shared)
        except BaseException:
            for lock in locks:
                lock.release()
            raise

    def keep(self) -> socket | None:
        """Make up for what was removed: folder, locks, socket. Returns the new listener where there had to be one.

        The caller closes the former one.
        Raises SeatTaken where another daemon has a lock by now, and OSError or UnsafeRuntime where nothing can be made
        yet, as in a runtime directory that the next login makes again.
        """
        if not self.locks[0].stands:
            self.folder.make(self.path)
        if not self.path.parent.exists():
            own_directory(self.path.parent)
        for lock in self.locks:
            _hold(lock)
        if self._is_there():
            return None
        self.listener = listen(self.path, self.shared)
        self._inode = _inode_at(self.path)
        return self.listener

    def _is_there(self) -> bool:
        try:
            return _inode_at(self.path) == self._inode
        except FileNotFoundError:
            return False

    def leave(self) -> None:
        """Remove the socket, unless another one is at its path. The locks stay until the process ends."""
        with suppress(OSError):
            if self._is_there():
                self.path.unlink()


def _all_taken(locks: tuple[Lock, ...]) -> bool:
    """Or none."""
    for lock in locks:
        if not lock.take():
            for other in locks:
                other.release()
            return False
    return True


def _hold(lock: Lock) -> None:
    """Lock the file at the path, unless that is locked. Raises SeatTaken, OSError.

    A starter has the first lock for an instant before it meets the second one, which is still ours.
    """
    end = time.monotonic() + PASSING
    while not lock.stands and not lock.retake():
        if time.monotonic() > end:
            raise SeatTaken(f"another daemon has locked {lock.path}")
        time.sleep(LOOK_EVERY)


def _lock_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("the file system of descriptor %d has no locks: %s", fd, error)
    return True


def _leads_to(path: Path, fd: int) -> bool:
    try:
        found, ours = path.lstat(), os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _inode_at(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _serves(path: Path) -> bool:
    try:
        connect(path, 1.0).close()
    except DaemonUnavailable:
        return False
    except DeadlinePassed:  # its backlog is full: it lives
        return True
    return True
