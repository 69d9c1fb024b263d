"""The making of arena segments: a file, addresses, memory, and the driver's registration; many side by side.

A driver registers one piece of memory at a time. For a page that is not in the page tables it waits until the kernel
enters it: 3.4 GB/s on an H200's machine, with any number of threads. So each thread fills its file and enters it into
the page tables first. 16 threads do that at 46 GB/s in huge pages, which the driver registers at 36 to 54 GB/s, and at
20 and 24 GB/s in small ones. 12 threads of another process that maps this memory read it at 65 GB/s, and at 15 GB/s.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from msgspec import Struct, field

from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE, Addresses
from gcr.memory.hostmemory import free_huge_bytes
from gcr.memory.layout import Segment
from gcr.memory.memfiles import HUGETLB, checked_size, fill_huge, promised_memfd

log = logging.getLogger(__name__)


class Maker(Struct, frozen=True):
    """Makes and releases segments; it keeps no books.

    `pin(address, size)` and `unpin(address)` are called from several threads at once.
    """

    pin: Callable[[int, int], None]
    unpin: Callable[[int], None]
    addresses: Addresses = field(default_factory=Addresses)

    def make(self, sizes: Sequence[int], threads: int) -> list[Segment]:
        """Makes filled and pinned segments, all or none. Raises NoRoom (addresses), OSError, and what `pin` raises."""
        made = self._each(sizes, self._mapped)
        self._each_pinned(made, self._fill_and_pin, threads)
        return made

    def promise(self, sizes: Sequence[int]) -> list[Segment]:
        """Makes segments of addresses and empty files, all or none; `keep` fills them later. Raises NoRoom, OSError."""
        return self._each(sizes, self._promised)

    def keep(
        self,
        promised: Sequence[Segment],
        unpinned: Sequence[Segment],
        threads: int,
        kept: Callable[[Segment], None],
    ) -> None:
        """Fills and pins promised segments, and pins unpinned ones; calls `kept` with each.

        The others stay what they were. Raises as `make` does.
        """
        for each in promised:
            hostmap.map_shared(each.address, each.size, each.fd)
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(self._keep, self._fill_and_pin, each, kept) for each in promised]
            jobs += [pool.submit(self._keep, self._pin, each, kept) for each in unpinned]
        for job in jobs:
            job.result()

    def adopt(self, fds: Sequence[int], sizes: Sequence[int] | None) -> list[Segment]:
        """Makes segments of filled files, all or none; `keep` pins them. Takes the descriptors also where it fails.

        Raises NotASegment, NoRoom (addresses), OSError.
        """
        made: list[Segment] = []
        try:
            checked = [checked_size(fd, None if sizes is None else sizes[index]) for index, fd in enumerate(fds)]
            for fd, size in zip(fds, checked, strict=True):
                made.append(self._placed(fd, size))
        except BaseException:
            self._drop_all(made)
            _close_quietly(set(fds) - {segment.fd for segment in made})
            raise
        return made

    def release(self, segments: Iterable[Segment], pinned: bool = True) -> None:
        """Unpins, unmaps and closes the segments. Raises OSError."""
        for segment in segments:
            try:
                if pinned:
                    self.unpin(segment.address)
            except Exception:  # the context may be gone, and the pin with it; the memory must still go
                log.exception("unpinning %d bytes failed", segment.size)
            self._drop(segment)

    def _each(self, sizes: Sequence[int], make: Callable[[int], Segment]) -> list[Segment]:
        made: list[Segment] = []
        try:
            for size in sizes:
                made.append(make(size))
        except BaseException:
            self._drop_all(made)
            raise
        return made

    def _each_pinned(self, made: Sequence[Segment], step: Callable[[Segment], None], threads: int) -> None:
        """Carries out a step that pins each segment; releases all where one fails."""
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(step, segment) for segment in made]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pinned = [segment for segment, job in zip(made, jobs, strict=True) if _succeeded(job)]
                self.release(pinned)
                self._drop_all([segment for segment in made if segment not in pinned])
                raise

    def _promised(self, size: int, flags: int = 0) -> Segment:
        fd = promised_memfd(size, flags)
        try:
            return Segment(fd, self.addresses.take(size), size)
        except BaseException:
            os.close(fd)
            raise

    def _mapped(self, size: int) -> Segment:
        """Maps a new segment, in huge pages where enough are free; mapping reserves them."""
        if free_huge_bytes(HUGE_PAGE) >= size:
            with suppress(OSError):  # another process took them; ordinary pages serve as well
                return self._map(self._promised(size, HUGETLB))
        return self._map(self._promised(size))

    def _map(self, segment: Segment) -> Segment:
        try:
            hostmap.map_shared(segment.address, segment.size, segment.fd)
        except BaseException:
            self._drop(segment)
            raise
        return segment

    def _placed(self, fd: int, size: int) -> Segment:
        """Maps a file as a segment. On failure the descriptor stays the caller's."""
        address = self.addresses.take(size)
        try:
            hostmap.map_shared(address, size, fd)
        except BaseException:
            self.addresses.give_back(address, size)
            raise
        return Segment(fd, address, size)

    def _fill_and_pin(self, segment: Segment) -> None:
        fill_huge(segment.fd, segment.size, segment.address)
        self._pin(segment)

    def _pin(self, segment: Segment) -> None:
        hostmap.populate(segment.address, segment.size)
        self.pin(segment.address, segment.size)

    def _keep(self, step: Callable[[Segment], None], segment: Segment, kept: Callable[[Segment], None]) -> None:
        step(segment)
        kept(segment)

    def _drop_all(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self.addresses.give_back(segment.address, segment.size)
        os.close(segment.fd)


def _succeeded(job: "Future[None]") -> bool:
    """Cancels the job, or waits for it, and tells whether it succeeded."""
    return not job.cancel() and job.exception() is None


def _close_quietly(fds: Iterable[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
