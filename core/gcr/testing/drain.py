"""The contract of DataDrain: memory crosses from one process to another and nothing is lost, kept or leaked."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import pytest

from gcr.backend import Device
from gcr.drain import DeviceRange, HandleSpec
from gcr.errors import DriverError, NoRoom, NotDeviceMemory
from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, TILE_BYTES, ChunkHashes, HashKey, hash_bytes
from gcr.testing.contract import ContractBase, MakePeer
from gcr.testing.pattern import digest, pattern
from gcr.testing.peer import Peer

MIB = 1 << 20
KEY = HashKey(bytes(range(32)))
SETTLE_SECONDS = 5.0
NEAR = 64 * MIB  # what a driver may keep for itself around an allocation


def specs(*mebibytes: int, first: int = 1) -> list[HandleSpec]:
    return [HandleSpec(id=first + index, size=size * MIB) for index, size in enumerate(mebibytes)]


def sizes(handles: Sequence[HandleSpec]) -> dict[int, int]:
    return {spec.id: spec.size for spec in handles}


def expected(handles: Sequence[HandleSpec], seed: int) -> dict[int, str]:
    return {spec.id: digest(seed, spec.id, spec.size) for spec in handles}


def expected_hashes(handles: Sequence[HandleSpec], seed: int, chunk_bytes: int) -> ChunkHashes:
    """Returns the hashes that the host computes of the same bytes."""
    digests = {spec.id: hash_bytes(pattern(seed, spec.id, spec.size), KEY, chunk_bytes) for spec in handles}
    return ChunkHashes(chunk_bytes, digests)


def send(source: Peer, where: DeviceRange, handles: Sequence[HandleSpec], target: Peer) -> DeviceRange:
    """Export in one process, adopt in another; the descriptors pass through this one and are closed."""
    exported, fds = source.exchange("export", where, [spec.id for spec in handles])
    try:
        adopted: DeviceRange = target.call("adopt", exported, fds=fds)
        return adopted
    finally:
        for fd in fds:
            os.close(fd)


def eventually(condition: Callable[[], bool]) -> bool:
    """Waits for a condition: a driver may give memory back a little after the call."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


class CopyContract(ContractBase):
    """The contract of every drain, also of one that cannot export memory as a descriptor."""

    handles: ClassVar[Sequence[int]] = (4, 2, 6)  # MiB, multiples of the granularity, of different sizes

    @pytest.fixture
    def owner(self, first_peer: Peer, device: Device) -> Peer:
        """A process that makes memory, as a target does."""
        first_peer.call("open", device.uuid)
        return first_peer

    @pytest.fixture
    def worker(self, new_peer: MakePeer, device: Device) -> Peer:
        """A process that takes it over."""
        peer = new_peer()
        peer.call("open", device.uuid)
        return peer

    def _made(self, owner: Peer, seed: int = 7) -> tuple[list[HandleSpec], DeviceRange]:
        handles = specs(*self.handles)
        where = owner.call("create", handles)
        owner.call("fill", where, sizes(handles), seed)
        return handles, where

    def test_handles_lie_side_by_side_in_order(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        offset = 0
        for spec in handles:
            assert where.offsets[spec.id] == offset
            offset += spec.size
        assert where.size == offset
        assert where.address != 0

    def test_one_copy_may_cross_the_border_between_handles(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        whole = {handles[0].id: where.size}
        assert owner.call("digests", where, whole)[handles[0].id] not in expected(handles, 7).values()

    def test_the_device_names_the_holders_of_memory(self, owner: Peer) -> None:
        where = owner.call("create", specs(64))
        assert owner.call("memory").by_pid[owner.pid] >= 64 * MIB
        owner.call("release", where)

    def test_release_is_idempotent(self, owner: Peer) -> None:
        _handles, where = self._made(owner)
        owner.call("release", where)
        owner.call("release", where)
        with pytest.raises(DriverError):
            owner.call("export", where, [1])

    def test_no_room_says_how_much_is_missing_and_keeps_nothing(self, owner: Peer) -> None:
        memory = owner.call("memory")
        half = memory.total // (4 * MIB) + 1  # units of 2 MiB: two halves are more than the device has
        with pytest.raises(NoRoom) as refused:
            owner.call("create", specs(2, 2 * half, 2 * half))
        assert 0 < (refused.value.missing or 0) <= memory.total + 4 * MIB
        assert eventually(lambda: owner.call("memory").used < memory.used + NEAR)

    def test_ballast_occupies_and_gives_back(self, owner: Peer) -> None:
        before = owner.call("memory").used
        ballast = owner.call("ballast", 64 * MIB)
        assert owner.call("memory").used >= before + 64 * MIB
        owner.call("drop", ballast)
        owner.call("drop", ballast)
        assert eventually(lambda: owner.call("memory").used < before + NEAR)

    def test_ballast_beyond_the_device_is_no_room(self, owner: Peer) -> None:
        memory = owner.call("memory")
        with pytest.raises(NoRoom) as refused:
            owner.call("ballast", 2 * memory.total)
        assert (refused.value.missing or 0) > 0

    def test_unpinning_what_is_not_pinned_is_an_error(self, owner: Peer) -> None:
        with pytest.raises(DriverError):
            owner.call("unpin", 0x10000)

    def test_progress_grows_to_the_whole(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        _passed, seen = owner.call("progress", where, sizes(handles), 10.0)
        assert seen == sorted(seen)
        assert seen[-1] == where.size

    def test_closing_gives_everything_back(self, owner: Peer, worker: Peer) -> None:
        before = worker.call("memory").used
        owner.call("create", specs(64))
        owner.call("ballast", 64 * MIB)
        owner.call("close")
        assert eventually(lambda: worker.call("memory").used <= before)
        with pytest.raises(DriverError):
            owner.call("create", specs(2))

    def test_what_was_released_is_free(self, owner: Peer) -> None:
        before = owner.call("memory").used
        where = owner.call("create", specs(64))
        assert owner.call("memory").used >= before + 64 * MIB
        owner.call("release", where)
        assert eventually(lambda: owner.call("memory").used < before + NEAR)

    @pytest.mark.parametrize("piece", [0, MIB, 3 * MIB // 2 + 1])
    def test_what_was_written_is_read_back(self, owner: Peer, piece: int) -> None:
        """piece: bytes of each copy, from two slots by turns; 0: one copy of each handle"""
        handles, where = self._made(owner)
        assert owner.call("digests", where, sizes(handles)) == expected(handles, 7)
        if piece:
            owner.call("fill_by_pieces", where, sizes(handles), 8, piece)
            assert owner.call("digests", where, sizes(handles)) == expected(handles, 8)

    @pytest.mark.parametrize("paced", [3, 1000])
    def test_copies_that_let_others_in_between_bring_every_byte(self, owner: Peer, paced: int) -> None:
        handles = specs(20, 50)
        where = owner.call("create", handles)
        owner.call("fill", where, sizes(handles), 7, paced)
        assert owner.call("digests", where, sizes(handles), paced) == expected(handles, 7)

    def test_what_was_moved_within_the_device_is_both_here_and_there(self, owner: Peer) -> None:
        handles, source = self._made(owner)
        target = owner.call("create", specs(sum(self.handles)))
        owner.call("move", target, source, [(0, 0, source.size)])
        copied = DeviceRange(target.address, target.size, source.offsets)
        assert owner.call("digests", copied, sizes(handles)) == expected(handles, 7)
        assert owner.call("digests", source, sizes(handles)) == expected(handles, 7)

    def test_parts_may_be_moved_to_other_places(self, owner: Peer) -> None:
        handles, source = self._made(owner)
        target = owner.call("create", specs(sum(self.handles)))
        moves, places, at = [], {}, 0
        for spec in reversed(handles):
            moves.append((at, source.offsets[spec.id], spec.size))
            places[spec.id], at = at, at + spec.size
        owner.call("move", target, source, moves)
        copied = DeviceRange(target.address, target.size, places)
        assert owner.call("digests", copied, sizes(handles)) == expected(handles, 7)

    def test_hashes_are_those_of_the_bytes(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        for chunk_bytes in (TILE_BYTES, 3 * TILE_BYTES, CHUNK_BYTES, 16 * MIB):
            found = owner.call("hash", [where], KEY, chunk_bytes)
            assert found == expected_hashes(handles, 7, chunk_bytes), chunk_bytes
        assert owner.call("digests", where, sizes(handles)) == expected(handles, 7), "hashing changed the memory"

    def test_several_ranges_are_hashed_by_one_call(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        others = specs(4, 6, first=1 + len(handles))
        beside = owner.call("create", others)
        owner.call("fill", beside, sizes(others), 7)
        expected_of_all = expected_hashes([*others, *handles], 7, CHUNK_BYTES)
        assert owner.call("hash", [beside, where], KEY, CHUNK_BYTES) == expected_of_all

    def test_a_changed_byte_changes_the_hash_of_its_chunk_alone(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        before = owner.call("hash", [where], KEY, CHUNK_BYTES).digests
        changed, chunk = handles[1].id, 3
        was = pattern(7, changed, handles[1].size)[(chunk + 1) * CHUNK_BYTES - 1]
        owner.call("poke", where, changed, (chunk + 1) * CHUNK_BYTES - 1, bytes([was ^ 1]))
        after = owner.call("hash", [where], KEY, CHUNK_BYTES).digests
        differ = [
            (id, at // DIGEST_BYTES)
            for id in before
            for at in range(0, len(before[id]), DIGEST_BYTES)
            if before[id][at : at + DIGEST_BYTES] != after[id][at : at + DIGEST_BYTES]
        ]
        assert differ == [(changed, chunk)]

    def test_an_empty_range_has_no_hashes(self, owner: Peer) -> None:
        where = owner.call("create", [])
        assert owner.call("hash", [where], KEY, CHUNK_BYTES).digests == {}

    def test_a_released_range_cannot_be_hashed(self, owner: Peer) -> None:
        _handles, where = self._made(owner)
        owner.call("release", where)
        with pytest.raises(DriverError):
            owner.call("hash", [where], KEY, CHUNK_BYTES)

    def test_memory_stays_mapped_while_it_is_hashed(self, owner: Peer) -> None:
        handles = specs(96, 96)
        for after in (0.005, 0.02, 0.08, 0.32, 1.28):
            where = owner.call("create", handles)
            owner.call("fill", where, sizes(handles), 7)
            try:
                found = owner.call("release_during_hash", where, KEY, CHUNK_BYTES, after)
            except DriverError:
                continue  # a busy machine: the release came before the hash had begun
            assert found == expected_hashes(handles, 7, CHUNK_BYTES)
            return
        pytest.fail("no hash had begun after 1.28 s")

    def test_hashing_keeps_no_memory(self, owner: Peer) -> None:
        _handles, where = self._made(owner)
        owner.call("hash", [where], KEY, 16 * MIB)
        before, reserved = owner.call("memory").used, owner.call("mapped_bytes")
        for _ in range(12):
            owner.call("hash", [where], KEY, 16 * MIB)  # its key is half a MiB, so what is kept is counted
        assert eventually(lambda: owner.call("memory").used <= before)
        kept = owner.call("mapped_bytes") - reserved
        assert kept < 96 * MIB, "buffers of 16 MiB and more each time; a thread's heap reserves 64 MiB once"


class DrainContract(CopyContract):
    """The contract of a drain that passes memory from one process to another as descriptors."""

    hands_over = True

    def test_hashes_cross_with_the_memory(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        adopted = send(owner, where, list(reversed(handles)), worker)
        assert worker.call("hash", [adopted], KEY, CHUNK_BYTES) == owner.call("hash", [where], KEY, CHUNK_BYTES)

    def test_forgotten_handles_are_not_hashed(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        owner.call("forget", where, [handles[1].id])
        left = [handles[0], handles[2]]
        assert owner.call("hash", [where], KEY, CHUNK_BYTES) == expected_hashes(left, 7, CHUNK_BYTES)

    def test_bytes_cross_to_another_process(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        adopted = send(owner, where, handles, worker)
        assert worker.call("digests", adopted, sizes(handles)) == expected(handles, 7)

    def test_both_processes_see_the_same_memory(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        adopted = send(owner, where, handles, worker)
        worker.call("fill", adopted, sizes(handles), 8)
        assert owner.call("digests", where, sizes(handles)) == expected(handles, 8)

    def test_memory_outlives_the_process_that_made_it(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        adopted = send(owner, where, handles, worker)
        owner.kill()
        assert worker.call("digests", adopted, sizes(handles)) == expected(handles, 7)

    def test_the_device_counts_released_memory_as_free(self, owner: Peer, worker: Peer) -> None:
        handles = specs(64, 64)
        before = owner.call("memory").used
        where = owner.call("create", handles)
        adopted = send(owner, where, handles, worker)
        owner.call("release", where)
        assert owner.call("memory").used >= before + 128 * MIB, "freed while another process still holds it"
        worker.call("release", adopted)
        assert eventually(lambda: owner.call("memory").used < before + NEAR)

    def test_forgotten_handles_are_free_and_the_others_whole(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        adopted = send(owner, where, handles, worker)
        owner.call("release", where)
        worker.call("forget", adopted, [handles[1].id])
        left = [handles[0], handles[2]]
        assert worker.call("digests", adopted, sizes(left)) == expected(left, 7)
        with pytest.raises(DriverError):
            worker.call("export", adopted, [handles[1].id])
        worker.call("release", adopted)

    def test_a_forgotten_handle_is_free_at_once(self, owner: Peer, worker: Peer) -> None:
        handles = specs(2, 64, 2)
        where = owner.call("create", handles)
        adopted = send(owner, where, handles, worker)
        owner.call("release", where)
        before = worker.call("memory").used
        worker.call("forget", adopted, [handles[1].id])
        assert eventually(lambda: worker.call("memory").used <= before - 64 * MIB)
        worker.call("release", adopted)

    def test_adopting_takes_the_descriptors(self, owner: Peer, worker: Peer) -> None:
        handles, where = self._made(owner)
        before = worker.call("descriptors")
        adopted = send(owner, where, handles, worker)
        worker.call("release", adopted)
        assert worker.call("descriptors") == before

    def test_exporting_leaves_none_behind(self, owner: Peer) -> None:
        handles, where = self._made(owner)
        before = owner.call("descriptors")
        _specs, fds = owner.exchange("export", where, [spec.id for spec in handles])
        assert len(fds) == len(handles)
        for fd in fds:
            os.close(fd)
        assert owner.call("descriptors") == before

    def test_a_descriptor_of_another_kind_is_refused_and_all_are_closed(self, owner: Peer, worker: Peer) -> None:
        good, second = specs(64, 2)
        for kind in ("socket", "pipe", "file", "directory", "null", "memfd"):
            where = owner.call("create", [good])
            before, used = worker.call("descriptors"), worker.call("memory").used
            _specs, fds = owner.exchange("export", where, [good.id])
            fds.append(_stranger(kind))
            try:
                with pytest.raises(NotDeviceMemory):
                    worker.call("adopt", [good, second], fds=fds)
            finally:
                for fd in fds:
                    os.close(fd)
            assert worker.call("descriptors") == before, kind
            owner.call("release", where)
            assert eventually(partial(_has_at_most, worker, used - 64 * MIB)), (
                f"{kind}: the good handle stayed imported"
            )

    def test_an_empty_hand_over_is_one(self, owner: Peer) -> None:
        where = owner.call("adopt", [])
        assert (where.size, dict(where.offsets)) == (0, {})
        owner.call("release", where)


def _has_at_most(worker: Peer, size: int) -> bool:
    used: int = worker.call("memory").used
    return used <= size


def _stranger(kind: str) -> int:
    """A descriptor that is no device memory; the caller closes it."""
    match kind:
        case "socket":
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()
        case "pipe":
            reading, writing = os.pipe()
            os.close(writing)
            return reading
        case "memfd":
            fd = os.memfd_create("gcr-stranger")
            os.ftruncate(fd, 4 * MIB)
            return fd
        case "file":
            return os.open(__file__, os.O_RDONLY)
        case "directory":
            return os.open("/", os.O_RDONLY)
    return os.open("/dev/null", os.O_RDWR)
