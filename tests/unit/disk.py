"""A disk that loses what was not synced: what a program does to a folder is recorded, and every state is made that a
crash may leave of it.

POSIX promises little: what was written to a file is there after its fsync, a name after the fsync of its folder. Before
that any part of it may be on the disk, in any order. So a state is the synced part and any subset of the rest; a write
counts as one part for each of its blocks. States with the same files and bytes are one. What the model leaves out:
folders that are made, and blocks that are torn.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from unittest.mock import patch

from gcr.image.pack import writer as packing

BLOCK = 4096
EXHAUSTIVE = 12  # parts that are not synced, up to which every subset is tried; beyond, this many at random
SAMPLES = 4000


Names = tuple[tuple[str, int | None], ...]
Contents = frozenset[tuple[str, frozenset[tuple[str, bytes]]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A change that may be on the disk or not. Exactly one of: bytes of a file, its length, names of a folder.

    Without bytes, and without a length: the file reaches to `at`, where it was shorter.
    """

    file: int | None = None  # inode
    at: int = 0
    data: bytes = b""
    length: int | None = None
    folder: str | None = None
    names: Names = ()  # name and inode; None: gone. All of them at once


@dataclass(slots=True)
class State:
    files: dict[int, bytes]  # which keep their hash: most states share most files
    folders: dict[str, dict[str, int]]

    def apply(self, part: Part) -> None:
        if part.folder is not None:
            names = self.folders.setdefault(part.folder, {})
            for name, inode in part.names:
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode
            return
        assert part.file is not None
        content, end = self.files.get(part.file, b""), part.at + len(part.data)
        if part.length is not None:
            self.files[part.file] = content[: part.length]
            return
        self.files[part.file] = content[: part.at].ljust(part.at, b"\0") + part.data + content[end:]

    def copy(self) -> "State":
        return State(dict(self.files), {folder: dict(names) for folder, names in self.folders.items()})

    def contents(self) -> Contents:
        """Returns the folders and files that a program would find."""
        return frozenset(
            (folder, frozenset((name, self.files.get(inode, b"")) for name, inode in names.items()))
            for folder, names in self.folders.items()
        )

    def write_to(self, root: Path) -> None:
        for folder, names in self.folders.items():
            (root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, inode in names.items():
                (root / folder / name).write_bytes(self.files.get(inode, b""))


@dataclass(slots=True)
class Disk:
    """`log`: parts and syncs, in order; a sync is the inode or the folder."""

    root: Path
    start: State = field(init=False)
    log: list[Part | int | str] = field(default_factory=list)
    _open: dict[int, tuple[int, str]] = field(default_factory=dict)  # by descriptor: inode, path; -1 for a folder
    _at: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = State({}, {})
        for folder in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            names = self.start.folders.setdefault(self._name(folder), {})
            for path in folder.iterdir():
                if path.is_file():
                    names[path.name] = path.stat().st_ino
                    self.start.files[path.stat().st_ino] = path.read_bytes()

    def states(self) -> Iterator[State]:
        """After every step, with every subset of what was not synced then."""
        seen, rng = set[Contents](), random.Random(0)
        for end in range(len(self.log) + 1):
            for state in self._states_after(end, rng):
                if (contents := state.contents()) not in seen:
                    seen.add(contents)
                    yield state

    def last_states(self) -> Iterator[State]:
        """After the last step."""
        return self._states_after(len(self.log), random.Random(0))

    def _states_after(self, end: int, rng: random.Random) -> Iterator[State]:
        synced, loose = self._divided(self.log[:end])
        for chosen in _subsets(loose, rng):
            state = synced.copy()
            for part in chosen:
                state.apply(part)
            yield state

    def _divided(self, log: list[Part | int | str]) -> tuple[State, list[Part]]:
        synced, loose = self.start.copy(), []
        for entry in log:
            if isinstance(entry, Part):
                loose.append(entry)
                continue
            for part in [part for part in loose if entry in (part.file, part.folder)]:
                synced.apply(part)
                loose.remove(part)
        return synced, loose

    @contextmanager
    def recorded(self) -> Iterator[None]:
        calls: dict[str, Callable[..., object]] = {
            "open": self._on_open,
            "close": self._on_close,
            "write": self._on_write,
            "pwritev": self._on_pwritev,
            "ftruncate": self._on_truncate,
            "fsync": self._on_sync,
            "rename": self._on_rename,
            "link": self._on_link,
            "unlink": self._on_unlink,
        }
        with ExitStack() as patches:
            for name, wrapper in calls.items():
                real = getattr(os, name)
                patches.enter_context(patch.object(os, name, self._wrapped(real, wrapper)))
            patches.enter_context(patch.object(packing, "allocate", self._wrapped(packing.allocate, self._on_allocate)))
            yield

    def _wrapped(self, real: Callable[..., object], note: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            return note(real, *args, **options)

        return call

    def _name(self, path: "os.PathLike[str] | str") -> str:
        return os.path.relpath(path, self.root)

    def _named(self, path: "os.PathLike[str] | str", inode: int | None) -> tuple[str, Names]:
        folder, name = os.path.split(self._name(path))
        return folder or ".", ((name, inode),)

    def _inside(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and Path(path).is_relative_to(self.root)

    def _on_open(self, real, path, flags, *more, **options):  # type: ignore[no-untyped-def]
        fresh = self._inside(path) and flags & os.O_CREAT and not Path(path).exists()
        fd = real(path, flags, *more, **options)
        if self._inside(path):
            inode = os.fstat(fd).st_ino
            is_folder = bool(flags & os.O_DIRECTORY)
            self._open[fd], self._at[fd] = (-1 if is_folder else inode, self._name(path)), 0
            if fresh:
                folder, names = self._named(path, inode)
                self.log.append(Part(folder=folder, names=names))
            if flags & os.O_TRUNC and not fresh:
                self.log.append(Part(file=inode, length=0))
        return fd

    def _on_close(self, real, fd):  # type: ignore[no-untyped-def]
        self._open.pop(fd, None)
        return real(fd)

    def _note(self, fd: int, at: int, data: bytes) -> None:
        inode = self._open[fd][0]
        for start in range(0, len(data), BLOCK):
            self.log.append(Part(file=inode, at=at + start, data=data[start : start + BLOCK]))

    def _on_write(self, real, fd, data):  # type: ignore[no-untyped-def]
        done = real(fd, data)
        if fd in self._open:
            self._note(fd, self._at[fd], bytes(data[:done]))
            self._at[fd] += done
        return done

    def _on_pwritev(self, real, fd, buffers, at):  # type: ignore[no-untyped-def]
        done = real(fd, buffers, at)
        if fd in self._open:
            self._note(fd, at, b"".join(map(bytes, buffers))[:done])
        return done

    def _on_truncate(self, real, fd, length):  # type: ignore[no-untyped-def]
        real(fd, length)
        if fd in self._open:
            self.log.append(Part(file=self._open[fd][0], length=length))

    def _on_allocate(self, real, fd, at, size):  # type: ignore[no-untyped-def]
        real(fd, at, size)
        if fd in self._open:
            self.log.append(Part(file=self._open[fd][0], at=at + size))

    def _on_sync(self, real, fd):  # type: ignore[no-untyped-def]
        real(fd)
        if fd in self._open:
            inode, name = self._open[fd]
            self.log.append(name if inode == -1 else inode)

    def _on_rename(self, real, source, target, **options):  # type: ignore[no-untyped-def]
        inode = Path(source).stat().st_ino
        real(source, target, **options)
        folder, gone = self._named(source, None)
        _, there = self._named(target, inode)
        self.log.append(Part(folder=folder, names=(*gone, *there)))

    def _on_link(self, real, source, target, **options):  # type: ignore[no-untyped-def]
        real(source, target, **options)
        folder, there = self._named(target, Path(target).stat().st_ino)
        self.log.append(Part(folder=folder, names=there))

    def _on_unlink(self, real, path, **options):  # type: ignore[no-untyped-def]
        real(path, **options)
        if self._inside(path):
            folder, gone = self._named(path, None)
            self.log.append(Part(folder=folder, names=gone))


def _subsets(parts: list[Part], rng: random.Random) -> Iterator[tuple[Part, ...]]:
    if len(parts) <= EXHAUSTIVE:
        yield from chain.from_iterable(combinations(parts, count) for count in range(len(parts) + 1))
        return
    yield from ((), tuple(parts))
    for _ in range(SAMPLES):
        share = rng.random()
        yield tuple(part for part in parts if rng.random() < share)
