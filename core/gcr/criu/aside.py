"""Memory that CRIU need not restore: gcr fills it, by several threads, while CRIU holds the processes.

CRIU reads the pages of a process by one thread, page by page. So private anonymous memory is taken out of its files
into files of its own. Once CRIU has made all processes, and before one of them runs, it is written to /proc/PID/mem.

    pages-N.img    what CRIU restores
    aside-N.img    the pages as they were saved, those for CRIU among them
    aside.json     the parts that are written, an `Aside` for each file

Left to CRIU are pages that several processes have at one address, since it lets a child share them with its parent; and
those in which the kernel notes the processor of a thread (rseq): it may not note that again soon.

Source: criu/cr-restore.c and pie/restorer.c, images/core.proto, rseq.proto, mm.proto and vma.proto of CRIU 4.2.
"""

import errno
import mmap
import os
import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode

from gcr.criu import messages
from gcr.criu.contents import in_threads
from gcr.criu.pagemap import PAGE, Pagemap, is_present, pagemaps, part_of, payloads_of, size_of
from gcr.criu.spans import Span, common, joined, less, meeting, several
from gcr.imageerrors import NotRestored
from gcr.listing import listed
from gcr.processmemory import overrules_protection

NOTE = "aside.json"
_CORE_MAGIC, _MM_MAGIC = 0x55053847, 0x57492820
_HEAP = 1 << 5  # in the status of an area
_PLAIN = _HEAP | 1 << 0 | 1 << 9  # regular, private and anonymous
_HUGE = 0x40000  # in its flags: MAP_HUGETLB
_LEAST = 1 << 20  # bytes; fewer are not worth a file
_PIECE = 4 << 20  # bytes that a thread writes at once
_COPIED = 1 << 20  # bytes that are copied at once
_ALL = signal.valid_signals()


class Run(Struct, frozen=True, array_like=True):
    """`at`: the place of the pages in the file aside."""

    address: int
    size: int
    at: int


class Aside(Struct, frozen=True):
    """The pages of a process that CRIU does not restore, and the file that has them."""

    pid: int
    file: str
    runs: Sequence[Run]


def put_aside(folder: Path) -> None:
    """Takes what CRIU need not restore out of the files of a dump, and notes it. Raises OSError.

    Does nothing where this process may not write all memory of others, or does not understand the files.
    """
    if not overrules_protection():
        return
    maps = [each for each in pagemaps(folder) if _process(each).isdecimal()]
    try:
        kept = sorted([*several(map(_spans, maps)), *_noted_by_the_kernel(folder)])
        areas = {each.pages: _areas(folder, _process(each)) for each in maps}
    except (OSError, ValueError, struct.error):
        return
    found = list[Aside]()
    for each in maps:
        spans = [*less(common(_spans(each), areas[each.pages]), [*joined(kept)])]
        if sum(end - begin for begin, end in spans) > max(_LEAST, sum(size for _, size in each.runs) // 2):
            found.append(_split(folder, each, spans))
    if found:
        (folder / NOTE).write_bytes(encode(found))


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


def _split(folder: Path, pagemap: Pagemap, spans: Sequence[Span]) -> Aside:
    """Has the file of pages aside, and makes another one of what is in no span."""
    whole = folder / pagemap.pages.replace("pages-", "aside-")
    (folder / pagemap.pages).rename(whole)
    runs, entries, at = list[Run](), list[Any](), 0
    with whole.open("rb", buffering=0) as old, (folder / pagemap.pages).open("xb", buffering=0) as new:
        for entry in pagemap.entries:
            if not is_present(entry):
                entries.append(entry)
                continue
            begin, end = entry.vaddr, entry.vaddr + size_of(entry)
            some = meeting(spans, begin, end)
            runs += [Run(first, last - first, at + first - begin) for first, last in common([(begin, end)], some)]
            for first, last in less([(begin, end)], some):
                entries.append(part_of(entry, first - begin, last - first))
                _copy(old.fileno(), at + first - begin, last - first, new.fileno())
            at += end - begin
    pagemap.rewrite(entries)
    return Aside(int(_process(pagemap)), whole.name, runs)


def _copy(old: int, at: int, size: int, new: int) -> None:
    """Copies bytes to the end of a file in memory. Raises OSError."""
    end = at + size
    while at < end:
        piece = memoryview(os.pread(old, min(_COPIED, end - at), at))
        at += len(piece)
        while piece:
            piece = piece[os.write(new, piece) :]


def fill(folder: Path) -> None:
    """Writes what is aside to the processes, which CRIU has made and holds. Raises NotRestored.

    No signal is delivered to the program's supervisor, this process, meanwhile.
    """
    note = folder / NOTE
    if not note.exists():
        return
    with ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, _ALL))
        try:
            pieces = [
                each for aside in decode(note.read_bytes(), type=list[Aside]) for each in _opened(folder, aside, stack)
            ]
            in_threads(_write, pieces)
        except (OSError, MsgspecError) as error:
            raise NotRestored(f"the memory of the processes could not be filled: {error}") from error


class _Piece(Struct, frozen=True):
    """Bytes for the memory of a process. `memory`: a descriptor of it."""

    memory: int
    address: int
    data: memoryview


def _opened(folder: Path, aside: Aside, stack: ExitStack) -> Iterator[_Piece]:
    memory = os.open(f"/proc/{aside.pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    stack.callback(os.close, memory)
    with (folder / aside.file).open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for run in aside.runs:
        for done in range(0, run.size, _PIECE):
            size = min(_PIECE, run.size - done)
            yield _Piece(memory, run.address + done, data[run.at + done : run.at + done + size])


def _write(piece: _Piece) -> None:
    """Raises OSError."""
    address, data = piece.address, piece.data
    while data:
        done = os.pwrite(piece.memory, data, address)
        if not done:  # the process has ended
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        address, data = address + done, data[done:]
