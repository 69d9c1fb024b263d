"""Marks that keep agents and supervisors away from the daemon's socket, while CRIU saves their processes.

    <socket>.away.<token>.<pid>     an empty file; token: of the job; pid: as the process calls itself

The daemon makes a mark before it asks the process to leave. It removes the mark once the dump has failed, or the
process has ended. The process comes back when there is no mark. A daemon that dies in between leaves marks behind. Its
successor keeps the marks of jobs that wait for their container's checkpoint, and removes the others.

A container may have the socket's folder elsewhere, and calls its processes by other pids: so a mark has the name of the
socket alone, and the pid is the process's own. Processes of two containers may have one pid, and two tokens.
"""

import logging
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from gcr.listing import listed

log = logging.getLogger("gcr.daemon")

_OTHERS = re.compile(r"[^0-9A-Za-z]")
_MOST = 40  # characters of a token, as a hello has it


def mark(socket: Path, token: str, pid: int) -> None:
    """Raises OSError."""
    os.close(os.open(path_of(socket, token, pid), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def unmark_job(socket: Path, token: str) -> None:
    """Removes all marks of a job. Raises OSError."""
    prefix = path_of(socket, token, "").name
    for path in _marks(socket):
        if path.name.startswith(prefix):
            path.unlink(missing_ok=True)


def is_marked(socket: Path, token: str, pid: int) -> bool:
    """Returns whether the mark is there. One that cannot be seen, for whatever reason, is not."""
    try:
        path_of(socket, token, pid).lstat()
    except OSError:
        return False
    return True


def unmark_all(socket: Path, but: Collection[str] = ()) -> None:
    """Removes the marks of a former daemon, but for those of jobs with these tokens.

    One that cannot be removed is logged: its process stays suspended.
    """
    kept = tuple(path_of(socket, token, "").name for token in but)
    for path in _marks(socket):
        if kept and path.name.startswith(kept):
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("an agent stays away until this file is removed: %s", error)


def path_of(socket: Path, token: str, pid: int | str) -> Path:
    """Returns the path of a mark, as shim/src/core/leaving.cpp makes it."""
    return socket.with_name(f"{socket.name}.away.{_OTHERS.sub('-', token)[:_MOST]}.{pid}")


def _marks(socket: Path) -> Iterator[Path]:
    """Yields the marks; none where the folder cannot be read, which is no reason for a daemon not to serve."""
    prefix = f"{socket.name}.away."
    try:
        files = listed(socket.parent)
    except OSError as error:
        log.error("agents that a former daemon sent away may stay there: %s", error)
        return
    for path in files:
        if path.name.startswith(prefix) and path.name.rpartition(".")[2].isdecimal():
            yield path
