"""The cuts of device memory for hashing, with a kernel and a driver whose device memory is the host's."""

import ctypes
import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.drain import HandleSpec
from gcr.errors import DeadlinePassed, DriverError
from gcr.hashing import DIGEST_BYTES, TILE_BYTES, HashKey, hash_bytes, native
from gcr.vmm import DeviceFull, hashing
from gcr.vmm.hashing import Asked, Hasher, Stretch, batches, hash_on_device, hash_on_host, joined
from gcr.vmm.ranges import OwnedRange, Piece

KEY = HashKey(bytes(32))
SIZES = st.lists(st.integers(1, 12).map(lambda units: units * TILE_BYTES // 4), min_size=1, max_size=5)


def asked(seconds: float = 60.0) -> Asked:
    return Asked(KEY, TILE_BYTES, time.monotonic() + seconds)


def chunks(stretches: Sequence[Stretch], chunk_bytes: int) -> list[tuple[int, int]]:
    return [
        (each.address + at, min(chunk_bytes, each.size - at))
        for each in stretches
        for at in range(0, each.size, chunk_bytes)
    ]


class Memory:
    """Handles side by side in host memory, one of them left out."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.contents = b"".join(bytes([1 + number]) * size for number, size in enumerate(sizes))
        self._memory = ctypes.create_string_buffer(self.contents, len(self.contents) + 16)
        self.address = ctypes.addressof(self._memory)
        starts = [0, *itertools.accumulate(sizes)]
        every = enumerate(zip(sizes, starts, strict=False))
        self.pieces = [Piece(HandleSpec(n, size), None, at) for n, (size, at) in every]
        self.pieces = self.pieces[:1] + self.pieces[2:]

    @property
    def stretches(self) -> list[Stretch]:
        return [Stretch(self.address + each.offset, each.spec.size) for each in self.pieces]

    def ranges(self, driver: "HostDriver") -> list[OwnedRange]:
        """Two, the second with the last piece alone."""
        parts = self.pieces[-2::-1], self.pieces[-1:]
        return [OwnedRange(driver, self.address, 0, {each.spec.id: each for each in part}) for part in parts]

    def expected(self) -> dict[int, bytes]:
        return {
            each.spec.id: hash_bytes(self.contents[each.offset : each.offset + each.spec.size], KEY, TILE_BYTES)
            for each in self.pieces
        }


class HostKernel:
    """Implements gcr.vmm.HashKernel where device memory is the host's."""

    def __init__(self) -> None:
        self.allocated: dict[int, object] = {}
        self.uploads: list[int] = []
        self.busy = False
        self.fails = False

    def allocate(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(memory) // 256) * 256
        self.allocated[address] = memory
        return address

    def free(self, address: int) -> None:
        del self.allocated[address]

    def upload(self, address: int, data: bytes) -> None:
        self.uploads.append(len(data))
        ctypes.memmove(address, data, len(data))

    def launch(self, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        if self.fails:
            raise DriverError("launch: as asked")
        data, size, chunk_bytes, key, digests = arguments
        assert blocks == -(-size // chunk_bytes)
        assert threads == 32
        assert native.library().gcr_hash_memory(0, data, size, chunk_bytes, key, digests)

    def idle(self) -> bool:
        return not self.busy

    def download(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def close(self) -> None: ...


class HostDriver:
    """The part of gcr.vmm.VmmDriver that a copy to the host needs, and its stream."""

    def __init__(self) -> None:
        self.pinned: set[int] = set()
        self.kernel = HostKernel()

    def enter(self) -> None: ...

    def hash_kernel(self) -> HostKernel:
        return self.kernel

    def pin(self, address: int, size: int) -> None:
        self.pinned.add(address)

    def unpin(self, address: int) -> None:
        self.pinned.remove(address)

    def stream(self) -> "HostDriver":
        return self

    def device_to_host(self, host: int, device: int, size: int) -> None:
        assert self.pinned
        ctypes.memmove(host, device, size)

    def mark(self, *, timed: bool) -> int:
        return 1

    def passed(self, event: int) -> bool:
        return not self.kernel.busy

    def seconds(self, first: int, last: int) -> float:
        return 0.0

    def forget(self, event: int) -> None: ...

    def idle(self) -> bool:
        return True

    def close(self) -> None: ...


@given(SIZES, st.sampled_from([TILE_BYTES, 2 * TILE_BYTES]))
def test_joining_keeps_every_chunk_and_its_order(sizes: list[int], chunk_bytes: int) -> None:
    stretches = Memory(sizes).stretches
    found = joined(stretches, chunk_bytes)
    assert chunks(found, chunk_bytes) == chunks(stretches, chunk_bytes)
    assert len(found) <= len(stretches)


def test_whole_neighbours_are_one_launch() -> None:
    assert joined([Stretch(0, 64), Stretch(64, 32), Stretch(96, 8)], 32) == [Stretch(0, 104)]
    assert joined([Stretch(0, 40), Stretch(40, 32)], 32) == [Stretch(0, 40), Stretch(40, 32)]


@given(SIZES, st.integers(1, 5))
def test_batches_keep_every_chunk_and_their_limit(sizes: list[int], limit: int) -> None:
    stretches = Memory(sizes).stretches
    found = list(batches(stretches, TILE_BYTES, limit))
    assert chunks([each for batch in found for each in batch], TILE_BYTES) == chunks(stretches, TILE_BYTES)
    assert all(0 < len(chunks(batch, TILE_BYTES)) <= limit for batch in found)


@given(SIZES, st.integers(1, 5))
def test_batches_and_buffers_of_any_size_find_the_same(sizes: list[int], room: int) -> None:
    memory = Memory(sizes)
    expected = b"".join(memory.expected().values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "BATCH_CHUNKS", room)
        kernel = HostKernel()
        assert hash_on_device(kernel, memory.stretches, asked()) == expected
        assert not kernel.allocated
    driver = HostDriver()
    assert hash_on_host(driver, memory.stretches, asked(), room * TILE_BYTES) == expected
    assert not driver.pinned


def test_hashes_are_by_handle() -> None:
    memory = Memory([3 * TILE_BYTES, TILE_BYTES, TILE_BYTES + 5, 7])
    driver = HostDriver()
    found = Hasher(driver).hashes(memory.ranges(driver), asked())
    assert found.on_device
    assert dict(found.digests) == memory.expected()
    assert [len(each) // DIGEST_BYTES for each in found.digests.values()] == [3, 2, 1]
    assert len(driver.kernel.uploads) == 1, "what a range costs is a launch"


def test_what_failed_keeps_nothing_but_what_the_device_still_uses() -> None:
    memory, driver = Memory([TILE_BYTES] * 3), HostDriver()
    driver.kernel.fails = True
    with pytest.raises(DriverError):
        Hasher(driver).hashes(memory.ranges(driver), asked())
    assert not driver.kernel.allocated
    driver.kernel.fails, driver.kernel.busy = False, True
    hasher = Hasher(driver)
    with pytest.raises(DeadlinePassed):
        hasher.hashes(memory.ranges(driver), asked(0.0))
    assert driver.kernel.allocated, "the kernel still writes its digests there"
    with pytest.raises(DeadlinePassed):
        hasher.check_idle()
    with pytest.raises(DeadlinePassed):
        hash_on_host(driver, memory.stretches, asked(0.0))
    assert not driver.pinned


def test_a_first_hash_finds_its_kernel_loaded_and_warm() -> None:
    memory, driver, loaded = Memory([3 * TILE_BYTES] * 3), HostDriver(), []
    kernel, load = driver.kernel, driver.hash_kernel
    driver.hash_kernel = lambda: loaded.append(len(kernel.uploads)) or load()  # type: ignore[method-assign, func-returns-value]
    hasher = Hasher(driver)
    for _ in range(2):
        hasher.make_ready(time.monotonic() + 60.0)
    assert (loaded, len(kernel.uploads), kernel.allocated) == ([0], 1, {}), "it has run, once, and keeps nothing"
    assert dict(hasher.hashes(memory.ranges(driver), asked()).digests) == memory.expected()
    assert loaded == [0]


def test_a_device_that_is_full_is_made_ready_without_room() -> None:
    driver = HostDriver()

    def full(_size: int) -> int:
        raise DeviceFull

    driver.kernel.allocate = full  # type: ignore[method-assign]
    Hasher(driver).make_ready(time.monotonic() + 60.0)
    driver = HostDriver()
    driver.kernel.fails = True
    with pytest.raises(DriverError):
        Hasher(driver).make_ready(time.monotonic() + 60.0)
