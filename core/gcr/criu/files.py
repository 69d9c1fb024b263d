"""Notes about the files that a process tree has mapped or open by name: CRIU saves their paths alone.

CRIU restores a process over a file of the same size whatever it holds. `seen` notes each file at a dump, and
`changed` compares before a restore.

The program stands still while `seen` and `changed` work. contents.py names the contents.
"""

import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path

from msgspec import Struct

from gcr.criu.contents import FORMER, Content, names
from gcr.criu.preflight.facts import Mapped, Opened, facts

_KERNEL = frozenset(  # file systems without stored files: the kernel generates the contents
    [
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "bpf",
        "configfs",
        "pstore",
        "devpts",
        "mqueue",
        "efivarfs",
        "binfmt_misc",
    ]
)


class FileSeen(Struct, frozen=True):
    """A file at the dump.

    `size`: in bytes · `content`: its name, see contents.py; empty where this process may not read it
    grows: a process appends to it (O_APPEND), and only its first `size` bytes have to be the same
    """

    path: str
    size: int
    content: str
    grows: bool


class What(Enum):
    """Ways in which a file can differ from the one that was seen."""

    GONE = "gone"
    SMALLER = "smaller"
    LARGER = "larger"
    OTHER = "other content"
    UNREADABLE = "unreadable"


_TEXTS = {
    What.GONE: "it is gone",
    What.SMALLER: "it is smaller than at the dump, when it had {size:,} bytes",
    What.LARGER: "it is larger than at the dump, when it had {size:,} bytes",
    What.OTHER: "it has other content than at the dump",
    What.UNREADABLE: "it cannot be read, so it cannot be compared with the one at the dump",
}


class Change(Struct, frozen=True):
    """A file that is not as it was seen. `size`: its bytes then."""

    path: str
    what: What
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {_TEXTS[self.what].format(size=self.size)}"


def seen(pids: Sequence[int]) -> list[FileSeen]:
    """Returns the regular files that these processes have mapped or open by name, by path.

    Memfds and deleted files are left out: CRIU saves their content. A file that goes meanwhile is left out, too.
    """
    found = facts(pids)
    files: list[Opened | Mapped] = [*found.opened, *found.mapped]
    systems = cache(_systems)
    named = {file.path: file for file in files if _is_named(file, systems(file.pid))}
    growing = {file.place for file in found.opened if _appends(file)}
    overwritten = {file.place for file in found.opened if _overwrites(file)}
    places = _seen(_once(named.values()), growing - overwritten)
    return [_named_so(places[file.place], path) for path, file in sorted(named.items()) if file.place in places]


def settled(pids: Sequence[int]) -> list[FileSeen]:
    """Returns the files as `seen` does. One that a process may write to goes on changing: its path alone counts."""
    written = {file.path for file in facts(pids).opened if file.access != os.O_RDONLY}
    return [FileSeen(each.path, 0, "", grows=True) if each.path in written else each for each in seen(pids)]


def changed(files: Iterable[FileSeen]) -> list[Change]:
    """Returns the files that a restore would not find as they were seen. A content may be the beginning of its name."""
    asked = list(files)
    found = {file.path: what for file in asked if (what := _by_facts(file))}
    read = [file for file in asked if file.content and file.path not in found]
    contents = names([Content(Path(file.path), file.size, file.content.startswith(FORMER)) for file in read])
    for file, name in zip(read, contents, strict=True):
        if what := _by_content(file, name):
            found[file.path] = what
    return [Change(file.path, found[file.path], file.size) for file in asked if file.path in found]


def _is_named(file: Opened | Mapped, systems: Mapping[str, str]) -> bool:
    """Returns whether the path leads to the regular file itself, on a file system that keeps files.

    systems: the type of each file system that the process has mounted; one that is not there keeps files
    """
    if file.mode is None or not stat.S_ISREG(file.mode) or not file.path.startswith("/"):
        return False
    try:
        found = _reached(file).stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == file.place and systems.get(_device(file), "") not in _KERNEL


def _reached(file: Opened | Mapped) -> Path:
    return Path(f"/proc/{file.pid}/root{file.path}")


def _device(file: Opened | Mapped) -> str:
    return f"{os.major(file.place[0])}:{os.minor(file.place[0])}"


def _systems(pid: int) -> Mapping[str, str]:
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {line.split(maxsplit=3)[2]: line.partition(" - ")[2].split(maxsplit=1)[0] for line in lines}


def _appends(file: Opened) -> bool:
    return bool(file.access != os.O_RDONLY and file.flags & os.O_APPEND)


def _overwrites(file: Opened) -> bool:
    return bool(file.access != os.O_RDONLY and not file.flags & os.O_APPEND)


def _once(files: Iterable[Opened | Mapped]) -> list[Opened | Mapped]:
    """Returns one file of each inode: hard links, and the same library in several processes, are read once."""
    return list({file.place: file for file in files}.values())


def _named_so(file: FileSeen, path: str) -> FileSeen:
    return FileSeen(path, file.size, file.content, file.grows)


def _seen(files: Sequence[Opened | Mapped], growing: Collection[tuple[int, int]]) -> dict[tuple[int, int], FileSeen]:
    """Returns a note of each file, by the place of the file. A file that is gone has none."""
    there = [(file, size) for file in files if (size := _size(file)) is not None]
    found = dict[tuple[int, int], FileSeen]()
    contents = names([Content(_reached(file), size) for file, size in there])
    for (file, size), name in zip(there, contents, strict=True):
        if isinstance(name, PermissionError):
            name = ""
        if isinstance(name, str):
            found[file.place] = FileSeen(file.path, size, name, file.place in growing)
    return found


def _size(file: Opened | Mapped) -> int | None:
    """Returns the bytes of a file, None for one that is gone."""
    try:
        return _reached(file).stat().st_size
    except OSError:
        return None


def _by_facts(file: FileSeen) -> What | None:
    """Returns how a file differs, as far as that is known without its content."""
    try:
        return _by_size(file, Path(file.path).stat())
    except OSError as error:
        return _of_error(error)


def _by_content(file: FileSeen, name: str | OSError) -> What | None:
    if isinstance(name, OSError):
        return _of_error(name)
    return None if name.startswith(file.content) else What.OTHER


def _of_error(error: OSError) -> What:
    return What.GONE if isinstance(error, FileNotFoundError | NotADirectoryError) else What.UNREADABLE


def _by_size(file: FileSeen, found: os.stat_result) -> What | None:
    if not stat.S_ISREG(found.st_mode):
        return What.OTHER
    if found.st_size < file.size:
        return What.SMALLER
    return What.LARGER if found.st_size > file.size and not file.grows else None
