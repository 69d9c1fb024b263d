"""Connections that CRIU may have locked for a dump: it leaves them so where it is killed (gcr.connections).

    <folder of the daemon>/locked/<token>    the processes, and the tables of nftables that CRIU had made before

A note is there from before the dump until the processes have ended, or run again with their connections. If the daemon
dies meanwhile, its successor undoes what CRIU has left.
"""

import logging
import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode

from gcr import connections
from gcr.errors import GcrError
from gcr.listing import listed
from gcr.processes import start_time, tracer
from gcr.rendezvous.folder import DaemonFolder
from gcr.runtime import own_directory, socket_path

log = logging.getLogger("gcr.daemon")

_OTHERS = re.compile(r"[^0-9A-Za-z]")
_MOST = 44  # characters of a name
POLL = 0.005
UNTRACED_S = 10.0  # for CRIU to let the processes go
_turn = threading.Lock()  # held while a note is written or settled
_under_way = set[str]()  # names of the notes of dumps that this process has under way; held by _turn


class Note(Struct, frozen=True):
    """`processes`: pid and start time of each · `former`: CRIU's tables of before the dump."""

    processes: tuple[tuple[int, int], ...]
    former: tuple[str, ...]


def note(token: str, pids: Collection[int]) -> None:
    """Notes that these processes of a job are about to be saved. Raises OSError, UnsafeRuntime."""
    known = ((pid, start_time(pid)) for pid in pids)
    path = _path_of(token)
    own_directory(path.parent)
    new = path.with_name(f".{path.name}")
    with _turn:
        _under_way.add(path.name)
        found = Note(tuple((pid, began) for pid, began in known if began is not None), tuple(connections.tables()))
        new.write_bytes(encode(found))
        new.rename(path)


def settle(token: str) -> None:
    """Lets the connections of a job go, once CRIU is not at its processes any more. Raises nothing.

    Does nothing without a note. The note stays where that could not be done: the next try may.
    """
    path = _path_of(token)
    with _turn:
        _under_way.discard(path.name)
        _settle(path)


def _settle(path: Path) -> None:
    try:
        known = decode(path.read_bytes(), type=Note)
    except FileNotFoundError:
        return
    except (OSError, MsgspecError) as error:
        log.error("connections of a job may stay locked: %s", error)
        return
    try:
        if pids := _untraced([pid for pid, began in known.processes if start_time(pid) == began]):
            connections.let_go(pids, known.former)
        path.unlink(missing_ok=True)
    except (OSError, TimeoutError) as error:
        log.error("connections of processes %s may stay locked; gcr recover tries again: %s", known.processes, error)


def settle_all() -> None:
    """Does so for every job of the daemon before, and where it failed. Raises nothing.

    A dump that is under way is passed over: CRIU may be about to lock its connections.
    """
    with suppress(OSError, GcrError):  # no folder
        for path in [*listed(_folder())]:
            with _turn:
                if not path.name.startswith(".") and path.name not in _under_way:
                    _settle(path)


def _untraced(pids: Collection[int]) -> Collection[int]:
    """Returns the pids once no process has a tracer. Raises TimeoutError."""
    end = time.monotonic() + UNTRACED_S
    while traced := [pid for pid in pids if tracer(pid)]:
        if time.monotonic() > end:
            raise TimeoutError(f"process {traced[0]} is traced by another still")
        time.sleep(POLL)
    return pids


def _path_of(token: str) -> Path:
    return _folder() / _OTHERS.sub("-", f"job-{token}")[:_MOST]


def _folder() -> Path:
    return DaemonFolder.of(socket_path()).path / "locked"
