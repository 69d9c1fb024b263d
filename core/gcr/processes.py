"""Facts of the kernel about processes: identity, safe from pid reuse and exec, owner, parents, and open files.

A process may vanish between any two reads; every function says what it answers then, and none raises for it.
"""

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
# In /proc/PID/stat, counted after the name: proc(5).
_STATE_FIELD, _PARENT_FIELD, _THREADS_FIELD, _START_FIELD, _STACK_FIELD, _ARGUMENTS_FIELD = 0, 1, 17, 19, 25, 45
_GROUP_FIELD, _SESSION_FIELD = 2, 3
_DEAD = frozenset("ZXx")
_STOPPED = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid together with its start time (clock ticks after boot): no later process has both.

    stack: where the kernel put the first thread's stack; each exec chooses anew, and nothing of a device survives one.
    0 where the kernel does not say, or not yet, in the middle of one: then an exec is not seen.
    """

    pid: int
    start_time: int
    stack: int = field(default=0, compare=False)

    def is_same(self, other: "ProcessIdentity") -> bool:
        """Returns whether both are one process that has called no exec in between, as far as the kernel says."""
        return self == other and (self.stack == other.stack or not (self.stack and other.stack))


class FileAccess(Struct, frozen=True):
    """The user ids and the root directory with which a process opens files.

    user_ids: real, effective, saved, of the file system; () for one that is gone · root: device and inode of its root
    directory; None where it may not be looked at
    """

    user_ids: tuple[int, ...]
    root: tuple[int, int] | None

    def differs_from(self, now: "FileAccess") -> bool:
        """Returns whether the user ids or the root directory changed, as far as it can be told."""
        moved = self.root is not None and now.root is not None and self.root != now.root
        return moved or bool(now.user_ids and self.user_ids != now.user_ids)


def identify(pid: int) -> ProcessIdentity | None:
    """Returns the identity of the process that has this pid now; None without one."""
    fields = _stat(pid)
    return _identity(pid, fields) if fields else None


def start_time(pid: int) -> int | None:
    """Clock ticks after boot; None when there is no such process."""
    fields = _stat(pid)
    return int(fields[_START_FIELD]) if fields else None


def started_at(pid: int) -> float:
    """Returns the start of a process in seconds since the epoch; for a process that is gone, the present time.

    The kernel counts from its boot, so the answer moves when the clock is set.
    """
    ticks = start_time(pid)
    if ticks is None:
        return time.time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def alive(identity: ProcessIdentity) -> bool:
    """Returns whether this very process still runs the same program, with one thread at least. A zombie does not."""
    fields = _stat(identity.pid)
    if not fields or not identity.is_same(_identity(identity.pid, fields)):
        return False
    return fields[_STATE_FIELD] not in _DEAD or int(fields[_THREADS_FIELD]) > 1


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger holds the process. Its threads then answer no request."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE_FIELD] in _STOPPED


def tracer(pid: int) -> int:
    """Returns the pid of the process that traces it; 0 without one, and for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("TracerPid:")), 0)


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
    ids = _user_ids(pid)
    return ids[0] if ids else None


def file_access(pid: int) -> FileAccess:
    return FileAccess(_user_ids(pid), _root_of(pid))


def _user_ids(pid: int) -> tuple[int, ...]:
    lines = (line.split() for line in _read(pid, "status").splitlines() if line.startswith("Uid:"))
    return tuple(int(word) for line in lines for word in line[1:])


def _root_of(pid: int) -> tuple[int, int] | None:
    try:
        found = (_PROC / str(pid) / "root").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def parent_pid(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[_PARENT_FIELD]) if fields else None


def in_groups_of(pids: Collection[int]) -> Mapping[int, int]:
    """Returns the processes that are in the session or the process group of one of these, each with that pid."""
    found: dict[int, int] = {}
    for pid in _pids():
        fields = _stat(pid)
        led = [each for each in map(int, fields[_GROUP_FIELD : _SESSION_FIELD + 1]) if each in pids]
        if led:
            found[pid] = led[0]
    return found


def label_of(pid: int) -> int:
    """Returns the pid by which a process calls itself: in a container another one than ours. `pid` if it is gone."""
    return (_pids_of(pid) or [pid])[-1]


def shares_namespaces(pid: int, kinds: Sequence[str], other: int | str = "self") -> bool:
    """Returns whether a process is in the same namespaces as another, by default as we are; True if it is gone."""
    names = [(_namespace(pid, kind), _namespace(other, kind)) for kind in kinds]
    return all(one == two for one, two in names if one and two)


def boot_id() -> str:
    """Returns the id that the kernel chose when it started; "" where it does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_space() -> str:
    """Returns the name of the namespace in which this process has its pid; "" where the kernel does not say."""
    return _namespace("self", "pid")


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return str((_PROC / str(pid) / "ns" / kind).readlink())
    except OSError:
        return ""


def pid_here(told: int, teller: int) -> int | None:
    """Returns the pid that a process has for us which `teller`, ours or in a namespace of its own, calls `told`.

    In a namespace it is looked for among the descendants of `teller`; None where none of them is called so, and for a
    `teller` that we cannot see.
    """
    known = _pids_of(teller)
    if len(known) == 1:
        return told
    return next((pid for pid in descendants(teller) if _pids_of(pid)[-1:] == [told]), None)


def _pids_of(pid: int) -> list[int]:
    """Returns the pids of a process in our namespace and in those below it, down to its own."""
    lines = (line.split() for line in _read(pid, "status").splitlines() if line.startswith("NSpid:"))
    return [int(word) for line in lines for word in line[1:]]


def ancestors(pid: int) -> Sequence[int]:
    """Parent, grandparent … up to init. Empty when there is no such process."""
    found: list[int] = []
    parent = parent_pid(pid)
    while parent and parent not in found:  # pids may be reused while we climb: no loop then either
        found.append(parent)
        parent = parent_pid(parent)
    return found


def descendants(pid: int) -> Sequence[int]:
    """Children, grandchildren …, nearest first."""
    children = _listed_children if _lists_children() else _by_parent().__getitem__
    found: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for one in generation for child in children(one) if child not in found]
        found.extend(generation)
    return found


def _lists_children() -> bool:
    """Not every kernel does, and to look at all processes takes as long as there are many."""
    return (_PROC / "thread-self" / "children").exists()


def _listed_children(pid: int) -> Iterator[int]:
    try:
        threads = [entry.name for entry in (_PROC / str(pid) / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in threads:
        yield from map(int, _read(pid, f"task/{thread}/children").split())


def _by_parent() -> Mapping[int, list[int]]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for other in _pids():
        parent = parent_pid(other)
        if parent is not None:
            children[parent].append(other)
    return children


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
    """Returns those of `fragments` that occur in the names of files the process has mapped: {"libnccl.so"}.

    Raises PermissionError when the process is not ours to look into; empty when it is gone.
    """
    files = mapped_files(pid)
    return [fragment for fragment in fragments if any(fragment in file for file in files)]


def _identity(pid: int, fields: Sequence[str]) -> ProcessIdentity:
    stack = int(fields[_STACK_FIELD])
    settled = stack != int(fields[_ARGUMENTS_FIELD])  # an exec on its way has them at one place, then moves the stack
    return ProcessIdentity(pid, int(fields[_START_FIELD]), stack if settled else 0)


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
