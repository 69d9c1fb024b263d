"""Obstacles in the state of a process: a tracer, a first thread that has ended, a foreign session."""

import os
from collections.abc import Iterator
from pathlib import Path

from gcr.criu.preflight.facts import Facts
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options

_OUTSIDE = 0  # what the kernel calls a session of another pid namespace


def of_tasks(facts: Facts, options: Options) -> Iterator[Obstacle]:
    """Yields an obstacle for each process that CRIU can neither seize nor make again.

    CRIU makes a zombie again, so a zombie is none.
    """
    for pid in facts.pids:
        yield from _of_task(pid)
    yield from (Obstacle(pid, Kind.UNREADABLE, "of another user") for pid in facts.unreadable)
    yield from _of_session(facts.pids[0], options)


def _of_task(pid: int) -> Iterator[Obstacle]:
    for thread in _threads(pid):
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


def _threads(pid: int) -> list[int]:
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
