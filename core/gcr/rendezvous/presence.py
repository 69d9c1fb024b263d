"""Presence: an empty file for each process under a daemon, so that the next daemon knows which have to come back.

    <daemon's folder>/present/<pid>.<start time>.<stack>

Supervisors and targets alike. A file says nothing once its process has ended: `living` passes over it, and the daemon
removes it. Not being able to write one is no obstacle: the daemon may be wrong about an empty list then, nothing else.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from gcr.listing import listed
from gcr.processes import ProcessIdentity, alive
from gcr.runtime import own_directory

log = logging.getLogger(__name__)

_FOLDER = "present"


class Presence:
    """Thread-safe; of the daemon that has the folder."""

    def __init__(self, folder: Path) -> None:
        self._directory = folder / _FOLDER
        self._lock = Lock()
        self._here: dict[ProcessIdentity, ProcessIdentity] = {}
        self._awaited = [*living(folder)]

    def awaited(self) -> Sequence[ProcessIdentity]:
        """Living processes that were under the former daemon and have not come to this one."""
        with self._lock:
            self._awaited = [each for each in self._awaited if each not in self._here and alive(each)]
            return [*self._awaited]

    def come(self, identity: ProcessIdentity) -> None:
        with self._lock:
            before, self._here[identity] = self._here.get(identity), identity
        try:
            if before is not None and before.stack != identity.stack:
                self._file(before).unlink(missing_ok=True)
            self._write(identity)
        except OSError as error:
            log.warning("process %d is not written down as present: %s", identity.pid, error)

    def gone(self, identity: ProcessIdentity) -> None:
        with self._lock:
            known = self._here.get(identity)
            if known is None or not known.is_same(identity):  # it has called exec, and come again
                return
            del self._here[identity]
        with suppress(OSError):
            self._file(known).unlink(missing_ok=True)

    def mend(self) -> None:
        """Write again what another removed, and remove what is left of processes that have ended. Raises OSError."""
        own_directory(self._directory)
        with self._lock:
            known = {self._file(each).name: each for each in (*self._here, *self._awaited)}
        there = {path.name for path in listed(self._directory)}
        for name in known.keys() - there:
            self._write(known[name])
        for name in there - known.keys():
            identity = _identity(name)
            if identity is None or not alive(identity):
                (self._directory / name).unlink(missing_ok=True)

    def _write(self, identity: ProcessIdentity) -> None:
        own_directory(self._directory)
        os.close(os.open(self._file(identity), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    def _file(self, identity: ProcessIdentity) -> Path:
        return self._directory / f"{identity.pid}.{identity.start_time}.{identity.stack}"


def living(folder: Path) -> Sequence[ProcessIdentity]:
    """Returns those of the daemon with this folder, living or not. Raises OSError."""
    directory = folder / _FOLDER
    if not directory.exists():
        return []
    found = (_identity(path.name) for path in listed(directory))
    return [each for each in found if each is not None and alive(each)]


def _identity(name: str) -> ProcessIdentity | None:
    try:
        pid, start, stack = map(int, name.split("."))
    except ValueError:
        return None
    return ProcessIdentity(pid, start, stack)
