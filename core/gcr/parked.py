"""Private places: each has the image of a job that is parked, that is, suspended without its processes.

    /dev/shm/gcr-parked-<job>-<id>-<random>/     in memory where it fits, else among gcr's own files; ours alone
        store/                                   a store with that image
        making | parked | withdrawn              an empty file: the state of the place

One rename decides. The supervisor turns `making` into `parked` and ends the processes, or the daemon turns it into
`withdrawn` and they run on. Only one of the two finds `making`, whichever of them is late, or dead.

A parked place is a program's only copy. It goes when the job runs again, or when the supervisor ends the job.
"""

import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct

from gcr.dumpfolder import free_bytes, places
from gcr.listing import listed

log = logging.getLogger(__name__)

IMAGE = "parked"  # the image's name in its store
_PREFIX = "gcr-parked-"
_STORE = "store"
_MAKING, _PARKED, _WITHDRAWN = "making", "parked", "withdrawn"
_MARGIN = 2  # times the bytes that are needed: others use the memory, too
_YOUNG_S = 10.0  # a folder is made first, and locked then


class Place(Struct, frozen=True):
    """One private place."""

    folder: Path

    @property
    def store(self) -> str:
        return str(self.folder / _STORE)

    @property
    def is_parked(self) -> bool:
        return (self.folder / _PARKED).exists()

    def commit(self) -> bool:
        """Decides that the job is in this place alone. Returns False where it was withdrawn. Raises OSError."""
        return self._turned(_PARKED)

    def withdraw(self) -> bool:
        """Decides that the job goes on without this place. Returns False where it is parked. Raises OSError."""
        return self._turned(_WITHDRAWN) or not self.is_parked

    def remove(self) -> None:
        """Removes the place. Raises nothing."""
        with suppress(OSError):  # first: half an image is no way back
            (self.folder / _PARKED).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _turned(self, state: str) -> bool:
        try:
            (self.folder / _MAKING).rename(self.folder / state)
        except FileNotFoundError:
            return False
        _sync(self.folder)
        return True


@contextmanager
def private_place(job: str, identity: str, needed: int, available: int) -> Iterator[Place]:
    """Yields an empty place for a job that runs. It is removed after the block, unless the job is parked there.

    identity: names the job's files · needed: bytes of its image · available: bytes of free host memory
    Raises OSError, UnsafeRuntime.
    """
    _sweep(identity)
    memory, disk = places()
    where = memory if min(free_bytes(memory), available) >= _MARGIN * needed else disk
    place = Place(Path(mkdtemp(prefix=f"{_PREFIX}{job}-{identity}-", dir=where)))
    lock = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place.folder / _MAKING).touch()
        yield place
    finally:
        if place.withdraw():
            place.remove()
        os.close(lock)


def place_of(store: str) -> Place | None:
    """Returns the private place, ours, of which this is the store; None for any other store. Raises UnsafeRuntime."""
    path = Path(store)
    if path.name != _STORE or not path.parent.name.startswith(_PREFIX):
        return None
    try:
        found = path.parent.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return Place(path.parent) if ours and path.parent.parent in places() else None


def left_by(job: str, identity: str) -> Place | None:
    """Returns the place where a job is parked; None without one."""
    return next((place for place in _places_of(identity, job) if place.is_parked), None)


def _places_of(identity: str, job: str | None = None) -> Iterator[Place]:
    for place in _all_places():
        named = place.folder.name.removeprefix(_PREFIX).rsplit("-", 2)
        if named[1:2] == [identity] and job in (None, named[0]):
            yield place


def _all_places() -> Iterator[Place]:
    for where in places():
        with suppress(OSError):
            found = [folder for folder in listed(where) if folder.name.startswith(_PREFIX)]
            yield from (place for folder in found if (place := place_of(str(folder / _STORE))))


def _sweep(runs: str) -> None:
    """Removes what daemons that died have left unfinished, and the former places of a job that runs, by its id."""
    for place in _all_places():
        if not place.is_parked:
            _remove_abandoned(place)
    for place in _places_of(runs):
        log.info("removing %s: its job runs again", place.folder)
        place.remove()


def _remove_abandoned(place: Place) -> None:
    """Raises nothing."""
    with suppress(OSError):
        lock = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(lock).st_ctime < time.time() - _YOUNG_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if place.withdraw():
                    log.info("removing %s, which was left behind", place.folder)
                    place.remove()
        finally:
            os.close(lock)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
