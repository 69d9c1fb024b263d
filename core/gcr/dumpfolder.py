"""Private folders for the files of a process tree, on their way to an image or back.

    /dev/shm/gcr-dump-<random>        in memory where they fit, else among gcr's own files, unless they are secret

A folder has bytes of programs, so it goes with its block. One that was left behind by a process which was killed goes
when the next is made: no process has its lock. Children that a process forks keep it, too.
"""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from gcr import units
from gcr.errors import NoRoom
from gcr.listing import listed
from gcr.runtime import state_dir

log = logging.getLogger(__name__)

_TMPFS = Path("/dev/shm")
_PREFIX = "gcr-dump-"
_MARGIN = 2  # times the bytes that are needed: others use the memory, too
_YOUNG_S = 10.0  # a folder is made first, and locked then


@contextmanager
def dump_folder(needed: int, secret: bool) -> Iterator[Path]:
    """Yields an empty folder, ours alone, for so many bytes. `secret`: they are for an encrypted store, and on no disk.

    Raises NoRoom, OSError, UnsafeRuntime.
    """
    sweep()
    folder = Path(mkdtemp(prefix=_PREFIX, dir=_place(needed, secret)))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def empty(folder: Path) -> None:
    """Removes the files of a folder that are needed no more; the folder stays until its block ends. Raises nothing."""
    with suppress(OSError):
        for path in listed(folder):
            with suppress(OSError):
                path.unlink()


def _place(needed: int, secret: bool) -> Path:
    missing = _MARGIN * needed - free_bytes(_TMPFS)
    if missing > 0 and secret:
        text = f"the processes take {units.size(needed)}, and {_TMPFS} has too little room: {units.size(missing)} short"
        raise NoRoom(text, missing=missing, hint="an encrypted store's bytes are written to no disk in the clear")
    return state_dir() if missing > 0 else _TMPFS


def sweep() -> None:
    """Removes the folders that processes of this user have left behind."""
    for place in places():
        with suppress(OSError):
            for folder in listed(place):
                if folder.name.startswith(_PREFIX):
                    _remove_abandoned(folder)


def places() -> tuple[Path, Path]:
    """Returns the folder in memory, and the one on a disk. Raises UnsafeRuntime."""
    return _TMPFS, state_dir()


def _remove_abandoned(folder: Path) -> None:
    """Raises nothing."""
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(lock)
            if found.st_uid == os.getuid() and found.st_ctime < time.time() - _YOUNG_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                log.info("removing %s, which was left behind", folder)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def free_bytes(folder: Path) -> int:
    """Returns the bytes that are free there; 0 where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
