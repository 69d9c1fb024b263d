"""Obstacles in the state of a process: a tracer, a first thread that has ended, a foreign session, namespaces."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gcr.criu.preflight.facts import Facts
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options
from gcr.processes import ancestors, in_groups_of

_OF_THE_ROOT = ("mnt", "net", "pid", "user")  # namespaces that a tree has to share with us
_OF_OTHERS = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")  # those that it has to share with its root
_OUTSIDE = 0  # what the kernel calls a session of another pid namespace


def of_tasks(facts: Facts, options: Options) -> Iterator[Obstacle]:
    """Yields an obstacle for each process that CRIU can neither seize nor make again.

    CRIU makes a zombie again, so a zombie is none.
    """
    for pid in facts.pids:
        yield from _of_task(pid)
    yield from (Obstacle(pid, Kind.UNREADABLE, "of another user") for pid in facts.unreadable)
    yield from _of_session(facts.pids[0], options)
    yield from _of_namespaces(facts.pids)
    yield from _of_left_behind(facts.pids)


def _of_task(pid: int) -> Iterator[Obstacle]:
    for thread in thread_ids(pid):
        if (tracer := _status(pid, thread).get("TracerPid", "0")) != "0":
            yield Obstacle(pid, Kind.TRACED, f"traced by process {tracer}")
            break
    own = _status(pid, pid)
    if own.get("State", "").startswith("Z") and own.get("Threads", "1") != "1":
        yield Obstacle(pid, Kind.FIRST_THREAD, "first thread has ended")


def _of_session(root: int, options: Options) -> Iterator[Obstacle]:
    try:
        session = os.getsid(root)
    except ProcessLookupError:
        return
    if session == _OUTSIDE:
        yield Obstacle(root, Kind.FOREIGN_SESSION, "in a session that began outside of its pid namespace")
    elif session != root and not (options.terminal or options.session):
        yield Obstacle(root, Kind.SESSION, f"in the session of process {session}")


def _of_left_behind(pids: Sequence[int]) -> Iterator[Obstacle]:
    """Yields what CRIU saves and cannot restore: a daemon has left the tree, and its session keeps the pid in use."""
    for outside, led in in_groups_of(pids).items():
        above = () if outside in pids else ancestors(outside)
        if above and pids[0] not in above:  # neither gone by now, nor a child that began just now
            yield Obstacle(led, Kind.LEFT_BEHIND, f"process {outside}, outside of the tree, is in its session or group")


def _of_namespaces(pids: Sequence[int]) -> Iterator[Obstacle]:
    """Yields also what CRIU saves and cannot restore: a child in a mount or network namespace of its own."""
    root, *others = pids
    yield from _of_differing(root, os.getpid(), _OF_THE_ROOT)
    for pid in others:
        yield from _of_differing(pid, root, _OF_OTHERS)


def _of_differing(pid: int, other: int, kinds: Sequence[str]) -> Iterator[Obstacle]:
    differing = [kind for kind in kinds if _namespace(pid, kind) != _namespace(other, kind)]
    if differing and all(_namespace(each, differing[0]) for each in (pid, other)):
        yield Obstacle(pid, Kind.NAMESPACE, f"in a namespace of its own ({', '.join(differing)})")


def _namespace(pid: int, kind: str) -> str:
    """Returns its name; empty for a process that is gone, or a zombie."""
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def thread_ids(pid: int) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _status(pid: int, thread: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}
