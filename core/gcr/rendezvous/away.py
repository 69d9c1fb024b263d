"""Marks that keep agents away from the daemon's socket, while CRIU saves their processes.

    <socket>.away.<pid>        an empty file; pid: as the process names itself in its hello

The daemon makes a mark before it asks the agent to leave. It removes the mark once the dump has failed, or the process
has ended. The agent comes back when there is no mark. A daemon that dies in between leaves marks behind, and its
successor removes them all.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from gcr.listing import listed

log = logging.getLogger("gcr.daemon")


def mark(socket: Path, pid: int) -> None:
    """Raises OSError."""
    os.close(os.open(_path(socket, pid), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def unmark(socket: Path, pid: int) -> None:
    """Removes the mark, if there is one. Raises OSError."""
    _path(socket, pid).unlink(missing_ok=True)


def unmark_all(socket: Path) -> None:
    """Removes the marks of a former daemon. One that cannot be removed is logged: its process stays suspended."""
    for path in _marks(socket):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("an agent stays away until this file is removed: %s", error)


def _marks(socket: Path) -> Iterator[Path]:
    """Yields the marks; none where the folder cannot be read, which is no reason for a daemon not to serve."""
    prefix = _path(socket, "").name
    try:
        files = listed(socket.parent)
    except OSError as error:
        log.error("agents that a former daemon sent away may stay there: %s", error)
        return
    for path in files:
        if path.name.startswith(prefix) and path.name.removeprefix(prefix).isdecimal():
            yield path


def _path(socket: Path, pid: int | str) -> Path:
    return socket.with_name(f"{socket.name}.away.{pid}")
