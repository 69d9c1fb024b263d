"""Chunk hashes of device memory: by the device's own kernel where there is one, else of a copy on the host.

Either way in bounded memory. On the device that is the key and a megabyte of digests, and a device without that room
has its memory hashed on the host. On the host it is two pinned buffers: one is hashed while the other is filled.
The caller has made the device current, and keeps the memory mapped.
"""

import logging
import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import addressof, c_char
from functools import partial

from msgspec import Struct

from gcr.errors import DeadlinePassed, DriverError
from gcr.hashing import DIGEST_BYTES, TILE_BYTES, ChunkHashes, HashKey, hash_address
from gcr.hashing.chunks import chunk_count
from gcr.vmm.driver import DeviceFull, HashKernel, NoHashKernel, RunsHashKernel, VmmDriver
from gcr.vmm.ranges import OwnedRange, Piece, quietly
from gcr.vmm.transfer import StreamTransfer, device_to_host

log = logging.getLogger("gcr.vmm")

LANES = 32
MAX_WARPS = 8
BATCH_CHUNKS = 65536
BUFFER_BYTES = 16 << 20
POLL_SECONDS = 0.0002
_ALIGNMENT = 256


class Stretch(Struct, frozen=True):
    """Mapped memory; its first chunk begins at its first byte."""

    address: int
    size: int

    def cut(self, limit: int) -> "Iterator[Stretch]":
        for start in range(0, self.size, limit):
            yield Stretch(self.address + start, min(limit, self.size - start))


class Asked(Struct, frozen=True):
    """The key, the size of chunks and the deadline of a hash."""

    key: HashKey
    chunk_bytes: int
    give_up: float  # on time.monotonic()

    def left(self) -> float:
        return max(0.0, self.give_up - time.monotonic())


class Hasher:
    """Hashes the memory of one device. Takes one call at a time."""

    def __init__(self, driver: VmmDriver) -> None:
        self._driver = driver
        self._kernel: HashKernel | None = None
        self._sought = False
        self._ready = False

    def hashes(self, ranges: Iterable[OwnedRange], asked: Asked) -> ChunkHashes:
        """Returns the hashes of the handles in these ranges. Raises DeadlinePassed, DriverError."""
        pieces: list[Piece] = []
        stretches: list[Stretch] = []
        for where in ranges:
            in_order = sorted(where.pieces.values(), key=lambda each: each.offset)
            pieces += in_order
            stretches += [Stretch(where.address + each.offset, each.spec.size) for each in in_order]
        digests, on_device = self._digests(joined(stretches, asked.chunk_bytes), asked)
        return ChunkHashes(asked.chunk_bytes, _by_id(pieces, digests, asked.chunk_bytes), on_device)

    def make_ready(self, give_up: float) -> bool:
        """Does what a first hash does besides: a driver compiles the kernel, which takes 100 ms. Once is enough.

        `give_up`: on time.monotonic(). Returns whether there is a kernel. Raises DeadlinePassed, DriverError.
        """
        kernel = self._kernel_here()
        if kernel is not None and not self._ready:
            with suppress(DeviceFull):
                _run_once(kernel, Asked(HashKey.random(), TILE_BYTES, give_up))
        self._ready = True
        return kernel is not None

    def _digests(self, stretches: Sequence[Stretch], asked: Asked) -> tuple[bytes, bool]:
        kernel = self._kernel_here()
        if kernel is not None:
            try:
                return hash_on_device(kernel, stretches, asked), True
            except DeviceFull:
                log.info("the device has no room to hash its memory: hashed on the host")
        return hash_on_host(self._driver, stretches, asked), False

    def _kernel_here(self) -> HashKernel | None:
        if not self._sought and isinstance(self._driver, RunsHashKernel):
            try:
                self._kernel = self._driver.hash_kernel()
            except NoHashKernel as lacking:
                log.info("device memory is hashed on the host: %s", lacking)
        self._sought = True
        return self._kernel

    def check_idle(self) -> None:
        """Raises DeadlinePassed while a kernel that came too late still reads memory."""
        if self._kernel is not None and not self._kernel.idle():
            raise DeadlinePassed("memory that is to be unmapped is still being hashed")

    def close(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()


def _by_id(pieces: Sequence[Piece], digests: bytes, chunk_bytes: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    for piece in pieces:
        end = at + DIGEST_BYTES * chunk_count(piece.spec.size, chunk_bytes)
        found[piece.spec.id] = digests[at:end]
        at = end
    return found


def joined(stretches: Sequence[Stretch], chunk_bytes: int) -> Sequence[Stretch]:
    """The same chunks in fewer stretches: neighbours are one where the border is a chunk's as well."""
    found: list[Stretch] = []
    for each in stretches:
        last = found[-1] if found else None
        if last and last.address + last.size == each.address and last.size % chunk_bytes == 0:
            found[-1] = Stretch(last.address, last.size + each.size)
        else:
            found.append(each)
    return found


def batches(stretches: Sequence[Stretch], chunk_bytes: int, limit: int) -> Iterator[Sequence[Stretch]]:
    """The same chunks, at most `limit` of them at a time, in order."""
    batch: list[Stretch] = []
    room = limit
    for each in stretches:
        at = each
        while at.size:
            part = Stretch(at.address, min(at.size, room * chunk_bytes))
            batch.append(part)
            room -= chunk_count(part.size, chunk_bytes)
            at = Stretch(at.address + part.size, at.size - part.size)
            if not room:
                yield batch
                batch, room = [], limit
    if batch:
        yield batch


# ---- on the device ------------------------------------------------------------------------------------------------


def hash_on_device(kernel: HashKernel, stretches: Sequence[Stretch], asked: Asked) -> bytes:
    """Digests of the stretches in their order. Raises DeviceFull before anything is hashed, DeadlinePassed,
    DriverError."""
    key = asked.key.expand(asked.chunk_bytes)
    offset = -(-len(key) // _ALIGNMENT) * _ALIGNMENT
    parts = list(batches(stretches, asked.chunk_bytes, BATCH_CHUNKS))
    most = max((_digest_bytes(part, asked.chunk_bytes) for part in parts), default=0)
    memory = kernel.allocate(offset + most)
    try:
        kernel.upload(memory, key)
        found = b"".join(_hash_batch(kernel, part, asked, memory, memory + offset) for part in parts)
    except DeadlinePassed:
        raise  # the kernel still writes there: the memory goes with the context
    except DriverError:
        quietly("free", partial(kernel.free, memory))
        raise
    kernel.free(memory)
    return found


def _run_once(kernel: HashKernel, asked: Asked) -> None:
    """Hashes memory that it allocates itself. Raises as `hash_on_device`."""
    scratch = kernel.allocate(asked.chunk_bytes)
    hash_on_device(kernel, [Stretch(scratch, asked.chunk_bytes)], asked)
    kernel.free(scratch)  # after an error it goes with the context: the kernel may still read it


def _hash_batch(kernel: HashKernel, batch: Sequence[Stretch], asked: Asked, key: int, digests: int) -> bytes:
    threads = LANES * min(MAX_WARPS, asked.chunk_bytes // TILE_BYTES)
    out = digests
    for each in batch:
        blocks = chunk_count(each.size, asked.chunk_bytes)
        kernel.launch(blocks, threads, (each.address, each.size, asked.chunk_bytes, key, out))
        out += blocks * DIGEST_BYTES
    while not kernel.idle():
        if time.monotonic() >= asked.give_up:
            raise DeadlinePassed("the device has not hashed its memory in time")
        time.sleep(POLL_SECONDS)
    return kernel.download(digests, out - digests)


def _digest_bytes(batch: Sequence[Stretch], chunk_bytes: int) -> int:
    return DIGEST_BYTES * sum(chunk_count(each.size, chunk_bytes) for each in batch)


# ---- on the host --------------------------------------------------------------------------------------------------


def hash_on_host(
    driver: VmmDriver, stretches: Sequence[Stretch], asked: Asked, buffer_bytes: int = BUFFER_BYTES
) -> bytes:
    """The same. Raises DeadlinePassed, DriverError, NativeMissing."""
    limit = buffer_bytes // asked.chunk_bytes * asked.chunk_bytes
    parts = [part for each in stretches for part in each.cut(limit)]
    room = max((part.size for part in parts), default=0)
    if not room:
        return b""
    digests: list[bytes] = []
    with _pinned(driver, 2 * room) as address:
        waiting = _Copy(driver, parts[0], address)
        try:
            for number, part in enumerate(parts[1:], start=1):
                ahead = _Copy(driver, part, address + number % 2 * room)
                ready, waiting = waiting, ahead
                digests.append(ready.hashed(asked))
            digests.append(waiting.hashed(asked))
        finally:
            waiting.abandon()
    return b"".join(digests)


class _Copy:
    """A stretch on its way to the host."""

    def __init__(self, driver: VmmDriver, part: Stretch, host: int) -> None:
        self._part = part
        self._host = host
        self._transfer = StreamTransfer(driver, [(host, part.address, part.size)], device_to_host)

    def hashed(self, asked: Asked) -> bytes:
        try:
            self._transfer.wait(asked.left())
        finally:
            self.abandon()
        return hash_address(self._host, self._part.size, asked.key, asked.chunk_bytes)

    def abandon(self) -> None:
        """The buffer must not go while the copy runs."""
        if self._transfer.running:
            self._transfer.abandon()


@contextmanager
def _pinned(driver: VmmDriver, size: int) -> Iterator[int]:
    memory = mmap.mmap(-1, size)
    view = (c_char * size).from_buffer(memory)
    address = addressof(view)
    driver.pin(address, size)
    try:
        yield address
    finally:
        quietly("unpin", partial(driver.unpin, address))
        del view
        memory.close()
