"""Memory of processes that run, cut as CRIU will cut it in its files: one chunk for each window of addresses.

A process goes on while it is read. So these bytes are a guess at what CRIU will save. Nothing is restored from them. A
window that is the same by then has the same chunk.

    private memory       process_vm_readv, at its addresses
    shared memory        the kernel's file of it, at its offsets: memory that is anonymous, and not a memfd

process_vm_readv holds the mmap lock of the process while it looks pages up, and not while it copies. /proc/PID/mem
takes that lock for each page: a program that does nothing but map and unmap did 0.3 of its work beside it, and 0.8
beside process_vm_readv. To read at a lower priority makes it worse: a reader that waits for a core keeps the lock.

Left out are device files, whatever the privacy of their mapping, and windows with pages that are swapped out: to read
them would bring them back.
"""

import os
import select
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct

from gcr.criu.pages import windows_of
from gcr.criu.pagescan import scanned
from gcr.criu.preflight.check import tree
from gcr.processmemory import Span, read_spans

_NAMED_FIELDS = 6  # of a line of /proc/PID/maps that has a path
_SHARED = "/dev/zero (deleted)"  # the kernel's name for anonymous memory that processes share
_ANONYMOUS = ("", "[heap]", "[stack]")
_NAMED = "[anon:"  # and a name, as prctl gives one


class Window(Struct, frozen=True):
    """The pages of one window of addresses: address and bytes of each run, in order."""

    runs: Sequence[Span]

    @property
    def size(self) -> int:
        """Returns the bytes of all."""
        return sum(size for _, size in self.runs)


class Memory(Struct, frozen=True):
    """A part of the memory of a tree of processes, and its windows. `name`: no other part has it.

    process: pid and pidfd of the process that has it as private memory · file: a descriptor of shared memory, else -1
    """

    name: str
    windows: Sequence[Window]
    process: tuple[int, int] = (0, -1)
    file: int = -1

    def read(self, window: Window, into: memoryview) -> bool:
        """Reads the pages of a window, one behind the other. Returns False where some are not there any more."""
        return self._read_shared(window, into) if self.file >= 0 else self._read_private(window, into)

    def _read_private(self, window: Window, into: memoryview) -> bool:
        pid, pidfd = self.process
        done = read_spans(pid, window.runs, into)
        return done == window.size and not _has_ended(pidfd)  # else another process may have had its pid

    def _read_shared(self, window: Window, into: memoryview) -> bool:
        at = 0
        for offset, size in window.runs:
            if os.preadv(self.file, [into[at : at + size]], offset) != size:
                return False
            at += size
        return True


class _Mapping(Struct, frozen=True):
    begin: int
    end: int
    private: bool
    path: str

    @property
    def link(self) -> str:
        """Returns its name below the folder of the process."""
        return f"map_files/{self.begin:x}-{self.end:x}"


class _Process(Struct, frozen=True):
    """A process. `folder`: a descriptor of its folder in /proc · `pidfd`: readable once it has ended."""

    pid: int
    folder: int
    pidfd: int


@contextmanager
def memories(root: int, most: int) -> Iterator[Iterator[Memory]]:
    """Yields the memory of a process and its descendants, one part after the other, each as it is when it comes.

    most: bytes of a window. A process that ends meanwhile is passed over. Raises OSError where the kernel cannot tell
    the pages of a process, or this process may not read it.
    """
    with ExitStack() as stack:
        found = list[_Process]()
        for pid in tree(root):
            with suppress(FileNotFoundError, ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                found.append(_Process(pid, folder, pidfd))
        ours = {*tree(root)}  # again: another process may have had the pid of one that had ended
        yield _memories([each for each in found if each.pid in ours and not _has_ended(each.pidfd)], most)


def _has_ended(pidfd: int) -> bool:
    watched = select.poll()  # this process may have many descriptors: select() takes no number from 1024 on
    watched.register(pidfd, select.POLLIN)
    return bool(watched.poll(0))


def _memories(processes: Sequence[_Process], most: int) -> Iterator[Memory]:
    seen = set[tuple[int, int]]()
    for each in processes:
        with suppress(FileNotFoundError, ProcessLookupError), ExitStack() as stack:
            mappings = [*_mappings(each.folder)]
            windows = [*_windows_of_private(each.folder, mappings, most)]
            yield Memory(str(each.pid), windows, process=(each.pid, each.pidfd))
            for mapping in mappings:
                if not mapping.private and mapping.path == _SHARED:
                    file = stack.enter_context(_opened(mapping.link, each.folder))
                    found = os.fstat(file)
                    if (place := (found.st_dev, found.st_ino)) not in seen:
                        seen.add(place)
                        parts = windows_of(_data(file, found.st_size), most)
                        yield Memory(f"shared-{found.st_ino}", [*map(Window, parts)], file=file)


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _mappings(folder: int) -> Iterator[_Mapping]:
    with _opened("maps", folder) as fd, open(fd, errors="replace", closefd=False) as lines:
        for line in lines:
            span, rights, *rest = line.rstrip("\n").split(maxsplit=_NAMED_FIELDS - 1)
            begin, end = (int(part, 16) for part in span.split("-"))
            yield _Mapping(begin, end, rights.endswith("p"), rest[-1] if len(rest) == _NAMED_FIELDS - 2 else "")


def _windows_of_private(folder: int, mappings: Sequence[_Mapping], most: int) -> Iterator[Window]:
    there, away = list[Span](), set[int]()
    with _opened("pagemap", folder) as pagemap:
        for mapping in mappings:
            if mapping.private and _is_memory(mapping, folder):
                for begin, end, swapped in scanned(pagemap, mapping.begin, mapping.end):
                    there.append((begin, end - begin))
                    away |= {*range(begin // most, (end - 1) // most + 1)} if swapped else set()
    for runs in windows_of(there, most):
        if runs[0][0] // most not in away:
            yield Window(runs)


def _is_memory(mapping: _Mapping, folder: int) -> bool:
    """Returns whether a mapping is of no file, or of a regular one."""
    if mapping.path in _ANONYMOUS or mapping.path.startswith(_NAMED):
        return True
    try:
        return stat.S_ISREG(os.stat(mapping.link, dir_fd=folder).st_mode)
    except OSError:  # the kernel's own, such as [vdso], or gone
        return False


def _data(fd: int, size: int) -> Iterator[Span]:
    """Yields the parts of a file that are no holes."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:  # a hole until its end
            return
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, end - begin
