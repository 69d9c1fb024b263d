"""What the kernel says of processes: identity that survives pid reuse, owner, parents, and what they have open.

A process may vanish between any two reads; every function says what it answers then, and none raises for it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE_FIELD, _PARENT_FIELD, _START_FIELD = 0, 1, 19  # in /proc/PID/stat, counted after the name: proc(5)
_DEAD = frozenset("ZXx")
_STOPPED = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid together with its start time (clock ticks after boot): no later process has both."""

    pid: int
    start_time: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of whoever has this pid now; None when nobody does."""
    started = start_time(pid)
    return None if started is None else ProcessIdentity(pid, started)


def start_time(pid: int) -> int | None:
    """Clock ticks after boot; None when there is no such process."""
    fields = _stat(pid)
    return int(fields[_START_FIELD]) if fields else None


def alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs. A zombie does not."""
    fields = _stat(identity.pid)
    return bool(fields) and int(fields[_START_FIELD]) == identity.start_time and fields[_STATE_FIELD] not in _DEAD


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds it. Its threads answer nobody then."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE_FIELD] in _STOPPED


def pidfd_open(identity: ProcessIdentity) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it is gone or the kernel has no pidfds.

    The identity is checked after opening: the pid may have been reused before.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:  # ESRCH, or ENOSYS before Linux 5.3
        return None
    if start_time(identity.pid) == identity.start_time:
        return fd
    os.close(fd)
    return None


def owner_uid(pid: int) -> int | None:
    """The real user id; None when there is no such process. (/proc/PID itself belongs to root when undumpable.)"""
    for line in _read(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def parent_pid(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[_PARENT_FIELD]) if fields else None


def ancestors(pid: int) -> Sequence[int]:
    """Parent, grandparent … up to init. Empty when there is no such process."""
    found: list[int] = []
    parent = parent_pid(pid)
    while parent and parent not in found:  # pids may be reused while we climb: no loop then either
        found.append(parent)
        parent = parent_pid(parent)
    return found


def descendants(pid: int) -> Sequence[int]:
    """Children, grandchildren …, nearest first, as of one look at /proc."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        parent = parent_pid(other)
        if parent is not None:
            children.setdefault(parent, []).append(other)
    found: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for one in generation for child in children.get(one, ()) if child not in found]
        found.extend(generation)
    return found


def open_verbs(pid: int) -> Sequence[str]:
    """RDMA devices the process has open, such as "/dev/infiniband/uverbs0".

    Raises PermissionError when the process is not ours to look into; empty when it is gone.
    """
    return open_files(pid, "/dev/infiniband/")


def open_files(pid: int, beginning: str) -> Sequence[str]:
    """Paths that begin so and that the process has open, each once. Raises PermissionError; empty when it is gone."""
    return sorted({target for target in _open_files(pid) if target.startswith(beginning)})


def mapped_files(pid: int) -> Sequence[str]:
    """Paths of the files it has mapped, each once. Raises PermissionError; empty when it is gone."""
    lines = (line.split(maxsplit=5) for line in _read(pid, "maps").splitlines())
    return sorted({fields[5] for fields in lines if len(fields) > 5})


def maps_contain(pid: int, fragments: Iterable[str]) -> Sequence[str]:
    """Which of `fragments` occur in the names of files the process has mapped: {"libnccl.so"}.

    Raises PermissionError when the process is not ours to look into; empty when it is gone.
    """
    files = mapped_files(pid)
    return [fragment for fragment in fragments if any(fragment in file for file in files)]


def _stat(pid: int) -> list[str]:
    # The name, in parentheses, may itself hold spaces and parentheses.
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _open_files(pid: int) -> Iterator[str]:
    try:
        links = list((_PROC / str(pid) / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for link in links:
        try:
            yield str(link.readlink())
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile
