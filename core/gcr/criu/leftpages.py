"""Memory that CRIU leaves in the processes that it holds still: it is read there, by several threads.

CRIU copies the pages of a process by one thread, through pipes, to its file of pages. With its option `lazy-pages` it
notes the addresses of private anonymous memory in the pagemap, and leaves the pages where they are. A server of its own
would send them later. gcr reads them while CRIU holds the processes, and asks that server for nothing. By
process_vm_readv it reads them, and by /proc/PID/mem what a process has protected from itself. An image has the files
that CRIU writes without that option.

Source: criu/mem.c, page-xfer.c and cr-dump.c of CRIU 4.2.
"""

import os
import resource
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from gcr.criu.pagemap import Pagemap, all_pagemaps, as_written, is_left, is_present, size_of
from gcr.criu.pages import cut
from gcr.imageerrors import NotDumped
from gcr.processmemory import Span, overrules_protection, private_addresses, read_spans, resident

_OF_PROCESS = "pagemap-"
_PIPE_BYTES = 1 << 20  # of a pipe at least; with CAP_SYS_RESOURCE CRIU makes larger ones
_OTHERS = 1000  # descriptors that CRIU has besides
_CAP_SYS_RESOURCE = 24
_AS_LONG = 100  # bytes of addresses, for the time of one byte that CRIU copies: 0.35 s for 64 GiB, and 0.5 s for 1 GiB
_LATER = 512 << 20  # bytes: a driver may put so many into a process before it is saved


class Part(Struct, frozen=True):
    """Pages that follow each other. `file`: a descriptor of the file that has them · `at`: their place there."""

    file: int
    at: int
    size: int


class LeftPages(Struct, frozen=True):
    """A file of pages of which CRIU wrote a part, and left the rest in the process `pid`.

    sizes: of its chunks, as `chunk_sizes` has them · parts: in the order of addresses, which is that of the file
    ends: where each part ends in the file · memory: a descriptor of the memory of the process
    """

    pid: str
    memory: int
    sizes: Sequence[int]
    parts: Sequence[Part]
    ends: Sequence[int]

    def read(self, at: int, into: memoryview) -> None:
        """Reads the bytes from `at` on. Raises NotDumped where a process has ended, or may not be read."""
        for file, parts in groupby(self._within(at, len(into)), key=lambda part: part.file):
            spans = [(part.at, part.size) for part in parts]
            size = sum(size for _, size in spans)
            self._read_spans(file, spans, into[:size])
            into = into[size:]

    def _within(self, at: int, size: int) -> Iterator[Part]:
        """Yields the parts that have so many bytes from `at` on; of the first and the last perhaps a piece."""
        number = bisect_right(self.ends, at)
        while size:
            part, left = self.parts[number], self.ends[number] - at
            some = min(left, size)
            yield Part(part.file, part.at + part.size - left, some)
            at, size, number = at + some, size - some, number + 1

    def _read_spans(self, file: int, spans: Sequence[Span], into: memoryview) -> None:
        done = read_spans(int(self.pid), spans, into) if file == self.memory else 0
        for at, size in spans:
            if done < size:
                self._read(file, at + done, into[done:size])
            done, into = max(done - size, 0), into[size:]

    def _read(self, file: int, at: int, into: memoryview) -> None:
        while into:
            try:
                done = os.preadv(file, [into], at)
            except OSError as error:
                text = f"the memory of process {self.pid} at {at:#x} cannot be read: {error.strerror}"
                raise NotDumped(text) from error
            if not done:
                raise NotDumped(f"the memory of process {self.pid} is gone, as the process has ended")
            at, into = at + done, into[done:]


@contextmanager
def left_pages(folder: Path, most: int, left: bool = True) -> Iterator[Mapping[str, LeftPages]]:
    """Yields the files of which CRIU left pages in the processes, by name. Their pagemaps name all pages from then on.

    most: bytes of a chunk · left: it may have left some. Raises OSError, and NotDumped unless CRIU held the processes
    until the end of the block: else they ran on, and what was read is of no one moment.
    """
    with ExitStack() as stack:
        found = {}
        for each in all_pagemaps(folder) if left else ():
            if any(map(is_left, each.entries)):
                entries = sorted(each.entries, key=lambda entry: entry.vaddr)  # CRIU notes the others first
                found[each.pages] = _opened(folder, each, most, stack)
                each.rewrite([*map(as_written, entries)])
        holders = {each.pid: _holder(each.pid) for each in found.values()}
        yield found
        for pid, holder in holders.items():
            if _holder(pid) != holder:
                raise _ran_on(pid)


def _holder(pid: str) -> int:
    """Returns the pid of the process that traces another one: CRIU. Raises NotDumped where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        raise _ran_on(pid) from error
    holder = next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
    if not holder:
        raise _ran_on(pid)
    return holder


def _ran_on(pid: str) -> NotDumped:
    return NotDumped(f"CRIU did not hold process {pid} until its memory was read")


def _opened(folder: Path, pagemap: Pagemap, most: int, stack: ExitStack) -> LeftPages:
    pid = pagemap.path.stem.removeprefix(_OF_PROCESS)
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, memory)
        file = os.open(folder / pagemap.pages, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, file)
    except OSError as error:
        raise NotDumped(f"the memory of process {pid} cannot be opened: {error.strerror}") from error
    found, at = list[tuple[int, Part]](), 0
    for entry in pagemap.entries:
        size = size_of(entry)
        if is_present(entry):
            found.append((entry.vaddr, Part(file, at, size)))
            at += size
        elif is_left(entry):
            found.append((entry.vaddr, Part(memory, entry.vaddr, size)))
    found.sort(key=itemgetter(0))
    parts = [part for _, part in found]
    sizes = [*cut([(address, part.size) for address, part in found], most)]
    return LeftPages(pid, memory, sizes, parts, [*accumulate(part.size for part in parts)])


def may_be_left(pids: Sequence[int], covered: int = 0) -> bool:
    """Tells whether CRIU may leave the memory of processes: gcr may read all of it, and CRIU have all pipes for it.

    CRIU puts the pages of all processes into pipes even so, without a copy, and keeps these until the end. Besides it
    fills 16 bytes for each page of private addresses, be anything there or not; where these are very many, a copy of
    what is there takes less.
    covered: bytes of addresses that will be those of shared memory by then
    """
    there = sum(map(resident, pids))
    addresses = sum(map(private_addresses, pids)) - covered
    may = overrules_protection() and 2 * (there // _PIPE_BYTES) + _OTHERS <= _descriptors()
    return may and addresses <= _AS_LONG * max(there, _LATER)


def _descriptors() -> int:
    """Returns how many descriptors CRIU may have: it raises its limit, where it may."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rights = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    if rights >> _CAP_SYS_RESOURCE & 1:
        return int(Path("/proc/sys/fs/nr_open").read_text())
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
