"""Device files of a process tree: devices that CRIU does not know, devices of GPUs, and terminals."""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from gcr.criu.preflight.facts import Facts, Mapped, Opened
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options

_MEMORY = 1  # major number of /dev/null and its like
_SAVED = {(_MEMORY, minor) for minor in (3, 5, 7, 8, 9, 11)}  # null, zero, full, random, urandom, kmsg
_ZERO = (_MEMORY, 5)
_RDMA = "/dev/infiniband/"

_CURRENT, _CONSOLE, _PTMX = (5, 0), (5, 1), (5, 2)
_CONSOLES, _MOST_CONSOLES = 4, 63
_SERIAL = frozenset((188, 204))  # USB, and low-density ports: CRIU saves these two
_SLAVES, _EACH = range(136, 144), 256
_TERMINAL_FIELD = 4  # of /proc/PID/stat, counted after the name


def of_devices(facts: Facts, members: Collection[int], options: Options) -> Iterator[Obstacle]:
    """Yields the devices, open or mapped, that CRIU does not save; terminals have rules of their own."""
    files: list[Opened | Mapped] = [*facts.opened, *facts.mapped]
    for each in files:
        if kind := _kind(each, members, options):
            yield Obstacle(each.pid, kind, _described(each))


def _kind(file: Opened | Mapped, members: Collection[int], options: Options) -> Kind | None:
    if file.path.startswith(options.device_files):
        return None if file.pid in members else Kind.NOT_A_MEMBER
    if file.mode is None or not (stat.S_ISCHR(file.mode) or stat.S_ISBLK(file.mode)):
        return None
    if file.path.startswith(_RDMA):
        return Kind.RDMA
    return None if _is_saved(file) else Kind.DEVICE


def _is_saved(file: Opened | Mapped) -> bool:
    if stat.S_ISBLK(file.mode or 0):
        return False
    if isinstance(file, Mapped):
        return _numbers(file) == _ZERO
    return _numbers(file) in _SAVED or _is_terminal(file)


def _numbers(file: Opened | Mapped) -> tuple[int, int]:
    return os.major(file.device), os.minor(file.device)


def _described(file: Opened | Mapped) -> str:
    if not file.device:
        return file.name
    return f"{file.name} ({'block' if stat.S_ISBLK(file.mode or 0) else 'character'} device {_text(file)})"


def _text(file: Opened | Mapped) -> str:
    return ":".join(map(str, _numbers(file)))


def of_terminals(facts: Facts, options: Options) -> Iterator[Obstacle]:
    """Yields the terminals of which the other end is outside of the tree. CRIU takes one of them with `shell-job`."""
    held = [file for file in facts.opened if stat.S_ISCHR(file.mode) and _is_terminal(file)]
    masters = {int(file.note("tty-index") or -1) for file in held if _numbers(file) == _PTMX}
    slaves = {index for file in held if (index := _slave(*_numbers(file))) is not None}
    outside = slaves - masters
    allowed = slaves & masters | (outside if options.terminal and len(outside) == 1 else set())
    for file in held:
        if not _is_allowed(file, allowed):
            yield Obstacle(file.pid, Kind.TERMINAL, f"{file.name} (a terminal)")


def _is_allowed(file: Opened, allowed: Collection[int]) -> bool:
    """Returns whether CRIU saves a terminal: each that has no other end, and of the others these slaves."""
    numbers = _numbers(file)
    if numbers == _CURRENT:
        return _slave(*_controlling(file.pid)) in allowed
    slave = _slave(*numbers)
    return slave is None or slave in allowed


def _is_terminal(file: Opened) -> bool:
    major, minor = _numbers(file)
    if (major, minor) in (_CURRENT, _CONSOLE, _PTMX) or major in _SERIAL or major in _SLAVES:
        return True
    return major == _CONSOLES and minor <= _MOST_CONSOLES


def _slave(major: int, minor: int) -> int | None:
    """Returns N of /dev/pts/N; None for another device."""
    return (major - _SLAVES.start) * _EACH + minor if major in _SLAVES else None


def _controlling(pid: int) -> tuple[int, int]:
    """Returns the numbers of the controlling terminal of a process; zeros without one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    device = int(fields[_TERMINAL_FIELD])
    return device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
