"""Programs in the background, each named by a file while it runs.

The program keeps its file locked, and the kernel lets go of the lock when it ends, however it ends. So a pid in a file
that is not locked is never taken for a program.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gcr.converting import convert

_MOST = 64 << 10  # bytes of a note
_LOOK_S = 0.05
_GLANCE_S = 0.25  # for those that look whether the file is locked: they lock it for an instant


class Note(Struct, frozen=True):
    """A program that runs: its pid, the address at which it listens, the hash of its certificate or None."""

    pid: int
    url: str
    certificate: str | None = None


class Runs(Exception):
    """The file names a program that runs. `note`: None while that one has not written it yet."""

    def __init__(self, note: Note | None) -> None:
        super().__init__(note)
        self.note = note


class Place:
    """The file of a program that this process is to be."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, note: Note) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(note), 0)


@contextmanager
def taken(path: Path) -> Iterator[Place]:
    """Locks the file within the block, and empties it at the end. Raises Runs, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(fd)
        try:
            os.ftruncate(fd, 0)
            yield Place(fd)
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    """Raises Runs."""
    until = time.monotonic() + _GLANCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise Runs(_note_in(fd)) from None
            time.sleep(_LOOK_S)
        else:
            return


def found(path: Path) -> Note | None:
    """Returns the note of the program that runs; None where none does, or it does not listen yet. Raises OSError."""
    with _unlocked(path) as fd:
        return None if fd is None or not _is_locked(fd) else _note_in(fd)


def end(path: Path, patience: float) -> bool:
    """Ends the program by SIGTERM, and returns whether one ran.

    Raises TimeoutError where it has not ended after `patience` seconds; OSError.
    """
    with _unlocked(path) as fd:
        if fd is None or not _is_locked(fd):
            return False
        until, told = time.monotonic() + patience, False
        while _is_locked(fd):
            if not told and (note := _note_in(fd)):
                with suppress(ProcessLookupError):
                    os.kill(note.pid, signal.SIGTERM)
                told = True
            if time.monotonic() >= until:
                raise TimeoutError(f"the program that {path} names has not ended after {patience:g} s")
            time.sleep(_LOOK_S)
        return True


@contextmanager
def _unlocked(path: Path) -> Iterator[int | None]:
    """Yields a descriptor of the file, None where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _note_in(fd: int) -> Note | None:
    try:
        return convert(msgspec.json.decode(os.pread(fd, _MOST, 0)), Note)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
