"""Facts about the descriptors and mappings of a process tree, by /proc.

A process, descriptor or mapping that is gone between two reads is passed over.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from gcr.processes import alive, identify

_GONE = (FileNotFoundError, ProcessLookupError)
_LOOKS = 10  # at a descriptor that another file takes between two reads
_NAMED_FIELDS = 6  # of a line of /proc/PID/maps that has a path


class Opened(Struct, frozen=True):
    """An open descriptor.

    `path`: the kernel's name for its file · `device`: the number of a device file, else 0 · `place`: device and inode
    of the file · `notes`: the text of /proc/PID/fdinfo/FD
    """

    pid: int
    fd: int
    path: str
    mode: int
    device: int
    place: tuple[int, int]
    notes: str

    def note(self, name: str) -> str | None:
        """Returns the value of a line of the notes; None without such a line."""
        lines = (line.partition(":") for line in self.notes.splitlines())
        return next((value.strip() for key, _, value in lines if key == name), None)

    @property
    def flags(self) -> int:
        return int(self.note("flags") or "0", 8)

    @property
    def access(self) -> int:
        """Returns O_RDONLY, O_WRONLY or O_RDWR."""
        return self.flags & os.O_ACCMODE

    @property
    def inode(self) -> int:
        return self.place[1]

    @property
    def link(self) -> Path:
        """Returns the link that opens the very file."""
        return _link(self.pid, self.fd)

    def is_still_open(self) -> bool:
        try:
            found = self.link.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.place

    @property
    def name(self) -> str:
        return f"descriptor {self.fd}, {self.path}"


class Mapped(Struct, frozen=True):
    """A file that a process has mapped, once however often. `mode`, `device`: None for one that cannot be opened."""

    pid: int
    path: str
    mode: int | None
    device: int
    place: tuple[int, int]

    @property
    def name(self) -> str:
        return f"mapped {self.path}"


class Facts(Struct, frozen=True):
    """Descriptors and mappings of the processes `pids`, the root first; `unreadable` are of other users."""

    pids: Sequence[int]
    opened: Sequence[Opened]
    mapped: Sequence[Mapped]
    unreadable: Sequence[int]


def facts(pids: Sequence[int]) -> Facts:
    """Reads /proc of each process. Never raises for a process."""
    opened: list[Opened] = []
    mapped: list[Mapped] = []
    unreadable: list[int] = []
    for pid in filter(_lives, pids):
        try:
            opened += opened_by(pid)
            mapped += mapped_by(pid)
        except PermissionError:
            unreadable.append(pid)
    return Facts(pids, opened, mapped, unreadable)


def opened_by(pid: int) -> Iterator[Opened]:
    """Yields the open descriptors of a process, by number. Raises PermissionError."""
    try:
        numbers = sorted(int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir())
    except _GONE:
        return
    for fd in numbers:
        try:
            yield _opened(pid, fd)
        except _GONE:
            continue


def _opened(pid: int, fd: int) -> Opened:
    """Raises FileNotFoundError for a descriptor that is closed, or is of another file at each look."""
    for _ in range(_LOOKS):
        with _pinned(pid, fd) as ours:
            path, found, same = _link("self", ours).readlink(), os.fstat(ours), _notes("self", ours)
        opened = Opened(pid, fd, str(path), found.st_mode, found.st_rdev, (found.st_dev, found.st_ino), _notes(pid, fd))
        if all(opened.note(name) == value for name, value in _file_of(same)):
            return opened
    raise FileNotFoundError(f"descriptor {fd} of process {pid} changes all the time")


@contextmanager
def _pinned(pid: int, fd: int) -> Iterator[int]:
    """Opens the file itself, whatever its type: the process may close it meanwhile, and open another one."""
    ours = os.open(_link(pid, fd), os.O_PATH | os.O_CLOEXEC)
    try:
        yield ours
    finally:
        os.close(ours)


def _link(pid: int | str, fd: int) -> Path:
    return Path(f"/proc/{pid}/fd/{fd}")


def _notes(pid: int | str, fd: int) -> str:
    return Path(f"/proc/{pid}/fdinfo/{fd}").read_text(errors="replace")


def _file_of(notes: str) -> Iterator[tuple[str, str]]:
    """Yields the notes that tell which file it is. Linux before 5.14 has no `ino`."""
    for line in notes.splitlines():
        name, _, value = line.partition(":")
        if name in ("mnt_id", "ino"):
            yield name, value.strip()


def socket_inodes(pids: Sequence[int]) -> frozenset[int]:
    """Returns the inodes of all sockets that these processes have open now."""
    return frozenset(inode for pid in pids for inode in _socket_inodes(pid))


def _socket_inodes(pid: int) -> Iterator[int]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        with suppress(*_GONE):
            if stat.S_ISSOCK((found := link.stat()).st_mode):
                yield found.st_ino


def mapped_by(pid: int) -> Iterator[Mapped]:
    """Yields the mapped files of a process, each once. Raises PermissionError."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except _GONE:
        return
    lines = (line.split(maxsplit=_NAMED_FIELDS - 1) for line in text.splitlines())
    files = {(fields[3], fields[4], fields[5]): fields[0] for fields in lines if len(fields) == _NAMED_FIELDS}
    for (device, inode, path), span in files.items():
        if not path.startswith("["):
            yield _mapped(pid, path, span, (_number(device), int(inode)))


def _mapped(pid: int, path: str, span: str, place: tuple[int, int]) -> Mapped:
    """Asks for the very file that is mapped; its path may name another one by now."""
    try:
        found = Path(f"/proc/{pid}/map_files/{_plain(span)}").stat()
    except OSError:  # a file without an inode of its own (anon_inode), or no privilege: then the path has to do
        return _by_path(pid, path, place)
    return Mapped(pid, path, found.st_mode, found.st_rdev, (found.st_dev, found.st_ino))


def _plain(span: str) -> str:
    """Returns a range of addresses as map_files names it: without leading zeros."""
    return "-".join(f"{int(end, 16):x}" for end in span.split("-"))


def _by_path(pid: int, path: str, place: tuple[int, int]) -> Mapped:
    try:
        found = Path(f"/proc/{pid}/root{path}").stat()
    except OSError:
        return Mapped(pid, path, None, 0, place)
    same = (found.st_dev, found.st_ino) == place
    return Mapped(pid, path, found.st_mode if same else None, found.st_rdev if same else 0, place)


def _number(device: str) -> int:
    """Returns the device number that `fe:00` is."""
    major, minor = device.split(":")
    return os.makedev(int(major, 16), int(minor, 16))


def _lives(pid: int) -> bool:
    identity = identify(pid)
    return identity is not None and alive(identity)
