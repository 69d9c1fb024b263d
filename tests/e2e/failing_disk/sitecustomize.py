"""A disk that fails at one call: Python loads this module first if PYTHONPATH has this folder.

A test copies it to a folder of its own. `rule` there says `NUMBER ERRNO FOLDER`: of the calls that change something
below FOLDER, by any process, the one of this number fails, from 0. `calls` has a line for each of them.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTROL = Path(__file__).parent
BY_PATH = ("open", "mkdir", "unlink", "rename", "replace", "link")
BY_DESCRIPTOR = ("write", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate")
real_open, real_write = os.open, os.write


def rule() -> tuple[int, int, str] | None:
    try:
        fd = real_open(f"{CONTROL}/rule", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        number, error, folder = os.read(fd, 4096).decode().split(" ", 2)
    finally:
        os.close(fd)
    return int(number), int(error), folder


def turn(call: str, path: str) -> int:
    """Notes the call, and returns how many came before it."""
    fd = real_open(f"{CONTROL}/calls", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before = os.pread(fd, 1 << 20, 0).count(b"\n")
        real_write(fd, f"{call} {Path(path).name}\n".encode())
    finally:
        os.close(fd)
    return before


def meet(call: str, path: str) -> None:
    """Raises OSError where this is the call that fails."""
    found = rule()
    if found and (path == found[2] or path.startswith(found[2] + "/")) and turn(call, path) == found[0]:
        raise OSError(found[1], os.strerror(found[1]), path)


def path_of(named: object) -> str:
    """Returns the path of a path, or of a descriptor."""
    if isinstance(named, int):
        return str(Path(f"/proc/self/fd/{named}").readlink())
    return os.fsdecode(named) if isinstance(named, str | bytes | os.PathLike) else ""


def failing(call: str) -> Callable[..., Any]:
    real = getattr(os, call)

    def maybe(first: Any, *rest: Any, **options: Any) -> Any:
        meet(call, path_of(first))
        return real(first, *rest, **options)

    return maybe


for each in (*BY_PATH, *BY_DESCRIPTOR):
    setattr(os, each, failing(each))
