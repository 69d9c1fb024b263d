"""Files of other types: those without a name in a file system, files of unmounted file systems, and file locks."""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from gcr.criu.preflight.facts import Facts, Mapped, Opened
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options

_ANONYMOUS = "anon_inode:"
_SAVED = frozenset(("eventfd", "eventpoll", "inotify", "fanotify", "signalfd", "timerfd"))
_KNOWN = {"io_uring": Kind.IO_URING, "userfaultfd": Kind.USERFAULTFD, "perf_event": Kind.PERF_EVENT}
_RDMA = ("infiniband", "uverbs")
_PIDFD = "pidfd"
_SECRET = "/secretmem (deleted)"
_SEGMENT = "/SYSV"
_MEMFD = "/memfd:"


def of_descriptors(facts: Facts, options: Options) -> Iterator[Obstacle]:
    """Yields the open files that CRIU does not know, and those that are locked unless `file_locks` allows it."""
    for file in facts.opened:
        if kind := _kind(file, facts.pids):
            yield Obstacle(file.pid, kind, _described(file, kind))
    if not options.file_locks:
        locked = (file for file in facts.opened if file.note("lock"))
        yield from (Obstacle(file.pid, Kind.FILE_LOCK, f"{file.name}, a lock on it") for file in locked)
    yield from _of_unmounted(facts)


def _kind(file: Opened, pids: Collection[int]) -> Kind | None:
    if file.path == _SECRET:
        return Kind.SECRET_MEMORY
    if not file.path.startswith(_ANONYMOUS):
        return None
    if _anonymous(file.path) == _PIDFD:
        return Kind.PIDFD if _is_outside(file, pids) else None
    return _kind_of_anonymous(file.path)


def _kind_of_anonymous(path: str) -> Kind | None:
    name = _anonymous(path)
    if name in _SAVED:
        return None
    return Kind.RDMA if name.startswith(_RDMA) else _KNOWN.get(name, Kind.UNKNOWN_FILE)


def _anonymous(path: str) -> str:
    """Returns the type that `anon_inode:[io_uring]` names; some have no brackets."""
    return path.removeprefix(_ANONYMOUS).strip("[]")


def _is_outside(file: Opened, pids: Collection[int]) -> bool:
    """Returns whether the pidfd is of a process that lives and is not in the tree."""
    target = int(file.note("Pid") or -1)  # -1: it has ended
    return target > 0 and target not in pids


def _described(file: Opened, kind: Kind) -> str:
    return f"{file.name} of process {file.note('Pid')}" if kind is Kind.PIDFD else file.name


def _of_unmounted(facts: Facts) -> Iterator[Obstacle]:
    mounts = {pid: _mounts(pid) for pid in facts.pids}
    for file in facts.opened:
        if _is_in_a_file_system(file) and file.note("mnt_id") not in mounts[file.pid] and mounts[file.pid]:
            yield Obstacle(file.pid, Kind.UNMOUNTED, file.name)


def _is_in_a_file_system(file: Opened) -> bool:
    if not file.path.startswith("/") or file.path.startswith((_MEMFD, _SECRET)):
        return False
    return not (stat.S_ISCHR(file.mode) or stat.S_ISBLK(file.mode))


def _mounts(pid: int) -> Collection[str]:
    """Returns the numbers of the mounts that a process sees; none for one that is gone or may not be read."""
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return ()
    return {line.split(maxsplit=1)[0] for line in text.splitlines()}


def of_mappings(facts: Facts) -> Iterator[Obstacle]:
    """Yields mappings that CRIU does not save although their descriptors may be closed."""
    own_segments = bool(facts.pids) and _namespace(facts.pids[0]) != _namespace(os.getpid())
    for file in facts.mapped:
        if kind := _kind_of_mapping(file, own_segments):
            yield Obstacle(file.pid, kind, file.name)


def _kind_of_mapping(file: Mapped, own_segments: bool) -> Kind | None:
    if file.path == _SECRET:
        return Kind.SECRET_MEMORY
    if file.path.startswith(_SEGMENT):
        return None if own_segments else Kind.SHARED_MEMORY
    return _kind_of_anonymous(file.path) if file.path.startswith(_ANONYMOUS) else None


def _namespace(pid: int) -> str:
    """Returns the IPC namespace of a process; empty where it is gone or may not be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/ipc").readlink())
    except OSError:
        return ""
