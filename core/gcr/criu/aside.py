"""Memory that CRIU need not restore: gcr fills it, by several threads, while CRIU holds the processes.

CRIU reads the pages of a process by one thread, page by page. So private anonymous memory is in none of its files. The
process that has read the image keeps it. Once CRIU has made all processes, and before one of them runs, it is written
to /proc/PID/mem. A file in memory would take as long once more: the kernel lets one writer at a time into it.

    pages-N.img    what CRIU restores
    an `Aside`     all pages of a file as they were saved, and where they go

Left to CRIU are pages that several processes have at one address, since it lets a child share them with its parent; and
those in which the kernel notes the processor of a thread (rseq): it may not note that again soon.

Source: criu/cr-restore.c and pie/restorer.c, images/core.proto, rseq.proto, mm.proto and vma.proto of CRIU 4.2.
"""

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import messages
from gcr.criu.contents import in_threads
from gcr.criu.pagemap import PAGE, Pagemap, is_present, part_of, payloads_of
from gcr.criu.spans import Span, common, joined, less, meeting, several
from gcr.imageerrors import NotRestored
from gcr.listing import listed
from gcr.processmemory import overrules_protection

_CORE_MAGIC, _MM_MAGIC = 0x55053847, 0x57492820
_HEAP = 1 << 5  # in the status of an area
_PLAIN = _HEAP | 1 << 0 | 1 << 9  # regular, private and anonymous
_HUGE = 0x40000  # in its flags: MAP_HUGETLB
_LEAST = 1 << 20  # bytes; fewer are not worth a file
_PIECE = 4 << 20  # bytes that a thread writes at once


class Run(Struct, frozen=True):
    """`at`: the place of the pages in the file as it was saved."""

    address: int
    size: int
    at: int


class Aside(Struct, frozen=True):
    """The pages of a process that CRIU does not restore. `memory`: of the whole file of pages."""

    pid: int
    runs: Sequence[Run]
    memory: memoryview


class Spared(Struct, frozen=True):
    """A file of pages of which CRIU need not restore the addresses `spans`. `size`: bytes of the file."""

    pagemap: Pagemap
    spans: Sequence[Span]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.pagemap.runs)

    def divide(self, folder: Path, memory: memoryview) -> Aside:
        """Makes a file in the folder of what CRIU restores, and returns the rest. Raises OSError.

        memory: of the whole file of pages
        """
        runs, entries, at, sizes = list[Run](), list[Any](), 0, iter(self.pagemap.runs)
        with (folder / self.pagemap.pages).open("xb", buffering=0) as file:
            for entry in self.pagemap.entries:
                if not is_present(entry):
                    entries.append(entry)
                    continue
                begin, size = next(sizes)
                end, some = begin + size, meeting(self.spans, begin, begin + size)
                if len(some) == 1 and some[0][0] <= begin and end <= some[0][1]:  # all of it, as nearly always
                    runs.append(Run(begin, size, at))
                    at += size
                    continue
                runs += [Run(first, last - first, at + first - begin) for first, last in common([(begin, end)], some)]
                for first, last in less([(begin, end)], some):
                    entries.append(part_of(entry, first - begin, last - first))
                    _append(file.fileno(), memory[at + first - begin : at + last - begin])
                at += end - begin
        self.pagemap.rewrite(entries)
        return Aside(int(_process(self.pagemap)), runs, memory)


def spared(folder: Path, found: Iterable[Pagemap]) -> Sequence[Spared]:
    """Returns the files of pages of which CRIU need not restore most. They need not be in the folder of the dump.

    found: all pagemaps of the dump. Returns none where this process may not write all memory of others, or does not
    understand the other files.
    """
    if not overrules_protection():
        return ()
    maps = [each for each in found if _process(each).isdecimal()]
    try:
        kept = [*joined(sorted([*several(map(_spans, maps)), *_noted_by_the_kernel(folder)]))]
        areas = {each.pages: _areas(folder, _process(each)) for each in maps}
    except (OSError, ValueError, struct.error):
        return ()
    some = (Spared(each, [*less(common(_spans(each), areas[each.pages]), kept)]) for each in maps)
    return [each for each in some if sum(end - begin for begin, end in each.spans) > max(_LEAST, each.size // 2)]


def _process(pagemap: Pagemap) -> str:
    """Returns the pid of a pagemap, as text; another text for memory that processes share."""
    return pagemap.path.stem.removeprefix("pagemap-")


def _spans(pagemap: Pagemap) -> Sequence[Span]:
    return [(address, address + size) for address, size in pagemap.runs]


def _areas(folder: Path, process: str) -> Sequence[Span]:
    """Returns the private anonymous memory of a process that is nothing else. Raises OSError, ValueError …"""
    (payload,) = payloads_of((folder / f"mm-{process}.img").read_bytes(), _MM_MAGIC)
    areas = messages.mm_entry(payload).vmas
    return sorted((each.start, each.end) for each in areas if each.status | _HEAP == _PLAIN and not each.flags & _HUGE)


def _noted_by_the_kernel(folder: Path) -> Iterator[Span]:
    """Yields the pages with the rseq of a thread. Raises OSError, ValueError …"""
    for path in listed(folder, ".img"):
        if path.name.startswith("core-"):
            for payload in payloads_of(path.read_bytes(), _CORE_MAGIC):
                noted = messages.core_entry(payload).thread_core.rseq_entry
                if noted.rseq_abi_pointer:
                    begin, end = noted.rseq_abi_pointer, noted.rseq_abi_pointer + noted.rseq_abi_size
                    yield begin // PAGE * PAGE, -(-end // PAGE) * PAGE


def _append(file: int, data: memoryview) -> None:
    """Raises OSError."""
    while data:
        data = data[os.write(file, data) :]


def fill(found: Sequence[Aside]) -> None:
    """Writes what is aside to the processes, which CRIU has made and holds. Raises NotRestored."""
    try:
        with ExitStack() as stack:
            in_threads(_write, [piece for aside in found for piece in _pieces(aside, stack)])
    except OSError as error:
        raise NotRestored(f"the memory of the processes could not be filled: {error}") from error


class _Piece(Struct, frozen=True):
    """Bytes for the memory of a process. `memory`: a descriptor of it."""

    memory: int
    address: int
    data: memoryview


def _pieces(aside: Aside, stack: ExitStack) -> Iterator[_Piece]:
    memory = os.open(f"/proc/{aside.pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    stack.callback(os.close, memory)
    for run in aside.runs:
        for done in range(0, run.size, _PIECE):
            size = min(_PIECE, run.size - done)
            yield _Piece(memory, run.address + done, aside.memory[run.at + done : run.at + done + size])


def _write(piece: _Piece) -> None:
    """Raises OSError."""
    address, data = piece.address, piece.data
    while data:
        done = os.pwrite(piece.memory, data, address)
        if not done:  # the process has ended
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        address, data = address + done, data[done:]
