"""The bytes of device memory: written, read, hashed, moved, and what a release does to a transfer."""

import ctypes
import hashlib
import mmap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

from gcr.drain import DataDrain, DeviceRange, Lane, Move, Span, Transfer
from gcr.errors import GcrError
from gcr.hashing import ChunkHashes, HashKey
from gcr.testing.pattern import pattern
from gcr.testing.serving.opened import Opened

COPY_SECONDS = 20.0


class Contents:
    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @property
    def _drain(self) -> DataDrain:
        return self._opened.drain

    def fill(self, where: DeviceRange, sizes: Mapping[int, int], seed: int, paced: int = 0) -> None:
        """Writes the pattern of each handle into the device, through pinned host memory.

        paced: how many times the drain is told to copy one short piece at a time, where it asks
        """
        with self._pinned(sum(sizes.values())) as (address, memory):
            spans = list(_spans(where, sizes, address))
            for span, (id, size) in zip(spans, sizes.items(), strict=True):
                memory[span.host - address : span.host - address + size] = pattern(seed, id, size)
            transfer = self._copy("write", spans, paced)
            assert transfer.wait(COPY_SECONDS) >= 0.0
            assert transfer.done() == sum(sizes.values())

    def fill_by_pieces(self, where: DeviceRange, sizes: Mapping[int, int], seed: int, piece: int) -> None:
        """Writes the pattern of each handle from two slots of `piece` bytes, through a lane where the drain has one."""
        made: Callable[[int], Lane | None] = getattr(
            self._drain, "lane", lambda _: None
        )  # optional: gcr.drain.HasLanes
        lane = made(2)
        if lane is None:
            self.fill(where, sizes, seed)
            return
        with self._pinned(2 * piece) as (address, memory):
            slots = cycle(range(2))
            for id, size in sizes.items():
                data, at = pattern(seed, id, size), where.address + where.offsets[id]
                for begin in range(0, size, piece):
                    slot, part = next(slots), data[begin : begin + piece]
                    lane.land(slot)
                    memory[slot * piece : slot * piece + len(part)] = part
                    lane.write(slot, at + begin, address + slot * piece, len(part))
            lane.close()

    def _copy(self, name: str, spans: Sequence[Span], paced: int) -> Transfer:
        """Starts a `read` or a `write`."""
        slowly = getattr(self._drain, f"{name}_paced", None)  # an optional part: gcr.drain.Paces
        if not paced or slowly is None:
            plain: Transfer = getattr(self._drain, name)(spans)
            return plain
        asked = iter(range(paced))
        transfer: Transfer = slowly(spans, lambda: next(asked, None) is not None)
        return transfer

    def digests(self, where: DeviceRange, sizes: Mapping[int, int], paced: int = 0) -> dict[int, str]:
        """Returns the SHA-256 of each handle's bytes as they are on the device now. `paced`: as of `fill`."""
        with self._pinned(sum(sizes.values())) as (address, memory):
            spans = list(_spans(where, sizes, address))
            transfer = self._copy("read", spans, paced)
            assert transfer.wait(COPY_SECONDS) >= 0.0
            assert transfer.done() == sum(sizes.values())
            return {
                id: hashlib.sha256(memory[span.host - address : span.host - address + span.size]).hexdigest()
                for id, span in zip(sizes, spans, strict=True)
            }

    def progress(self, where: DeviceRange, sizes: Mapping[int, int], deadline: float) -> tuple[bool, list[int]]:
        """Reads with a deadline. Returns whether it passed, and the bytes done as seen on the way, the end included."""
        with self._pinned(sum(sizes.values())) as (address, _memory):
            transfer = self._drain.read(list(_spans(where, sizes, address)))
            seen, passed = [transfer.done()], False
            try:
                transfer.wait(deadline)
            except GcrError as error:
                passed = error.code == "deadline_passed"
            give_up = time.monotonic() + COPY_SECONDS
            while seen[-1] < sum(sizes.values()) and time.monotonic() < give_up:
                seen.append(transfer.done())
                time.sleep(0.002)
            transfer.wait(COPY_SECONDS)
            return passed, seen

    def hash(
        self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int, timeout: float = COPY_SECONDS
    ) -> ChunkHashes:
        return self._drain.hash(ranges, key, chunk_bytes, timeout)

    def poke(self, where: DeviceRange, id: int, at: int, value: bytes) -> None:
        """Writes some bytes of a handle."""
        with self._pinned(len(value)) as (address, memory):
            memory[:] = value
            self._drain.write([Span(where.address + where.offsets[id] + at, address, len(value))]).wait(COPY_SECONDS)

    def move(self, target: DeviceRange, source: DeviceRange, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copies within the device. A move is an offset in each range, and bytes."""
        placed = [Move(target.address + to, source.address + at, size) for to, at, size in moves]
        transfer = self._drain.move(placed)
        assert transfer.wait(COPY_SECONDS) >= 0.0
        assert transfer.done() == sum(size for _to, _at, size in moves)

    def release_during_hash(self, where: DeviceRange, key: HashKey, chunk_bytes: int, after: float) -> ChunkHashes:
        """Releases a range `after` seconds of another thread's hash of it; returns the hashes that the thread found.

        Raises DriverError if the thread had not come to the range by then.
        """
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(self.hash, [where], key, chunk_bytes)
            while not waiting.running() and not waiting.done():
                time.sleep(0)
            time.sleep(after)
            self._drain.release(where)
            return waiting.result(COPY_SECONDS)

    def release_during_read(self, where: DeviceRange, sizes: Mapping[int, int]) -> int:
        """Releases a range while it is being read; returns the bytes that had moved when release came back."""
        with self._pinned(sum(sizes.values())) as (address, _memory):
            transfer = self._drain.read(list(_spans(where, sizes, address)))
            self._drain.release(where)
            moved = transfer.done()
            transfer.wait(COPY_SECONDS)
            return moved

    @contextmanager
    def _pinned(self, size: int) -> Iterator[tuple[int, mmap.mmap]]:
        memory = mmap.mmap(-1, size)
        view = (ctypes.c_char * size).from_buffer(memory)
        address = ctypes.addressof(view)
        self._drain.pin(address, size)
        try:
            yield address, memory
        finally:
            self._drain.unpin(address)
            del view
            memory.close()


def _spans(where: DeviceRange, sizes: Mapping[int, int], host: int) -> Iterator[Span]:
    """Yields a span for each handle, packed on the host in the order of `sizes`."""
    for id, size in sizes.items():
        yield Span(where.address + where.offsets[id], host, size)
        host += size
