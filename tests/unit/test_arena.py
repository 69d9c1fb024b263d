"""The arena on real memory of this machine, a few MiB of it; pinning is a record book."""

import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gcr.errors import DriverError, NoRoom, RolledBack
from gcr.memory import arena as module
from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.arena import Arena, NotASegment, Segment
from gcr.memory.memfiles import filled_memfd, hold_still
from gcr.testing.machine import until

MiB = 1 << 20
SEGMENT = 4 * MiB
PATIENCE = 20.0
HOLDER = """
import sys
from gcr.memory.memfiles import hold_still
hold_still(int(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


class Pins:
    """Pinned ranges, as a driver would keep them: overlaps and unknown addresses are errors."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.ever = 0
        self.lock = threading.Lock()
        self.fail_after: int | None = None
        self.delay = 0.0
        self.begun = threading.Event()
        self.go_on: Callable[[], object] = lambda: None
        self.looking: Callable[[int, int], object] = lambda _address, _size: None

    def pin(self, address: int, size: int) -> None:
        self.begun.set()
        self.go_on()
        self.looking(address, size)
        time.sleep(self.delay)
        with self.lock:
            if self.fail_after is not None and self.ever >= self.fail_after:
                raise DriverError("cuMemHostRegister: out of memory")
            assert not any(a < address + size and address < a + s for a, s in self.now.items())
            ctypes.memmove(address, ctypes.string_at(address, 1), 1)  # it must be mapped and writable
            self.now[address] = size
            self.ever += 1

    def unpin(self, address: int) -> None:
        with self.lock:
            del self.now[address]


@pytest.fixture
def pins():
    return Pins()


@pytest.fixture(autouse=True)
def nothing_leaks(pins):
    before = list(Path("/proc/self/fd").iterdir())
    yield
    assert pins.now == {}
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


@pytest.fixture
def arena(pins):
    made = make(pins)
    yield made
    made.close()


def make(pins, limit=64 * MiB, segment=SEGMENT, threads=4) -> Arena:
    return Arena(pins.pin, pins.unpin, segment_bytes=segment, limit_bytes=limit, threads=threads)


def wishing(**wishes):
    return lambda: wishes


def fill(segments, text: bytes) -> None:
    for part in segments:
        ctypes.memmove(part.address, text, len(text))


def read(part: Segment, size: int) -> bytes:
    return ctypes.string_at(part.address, size)


def test_what_is_taken_is_mapped_pinned_filled_and_sealed(arena, pins):
    segments = arena.take("llm", 10 * MiB)
    assert [part.size for part in segments] == [4 * MiB, 4 * MiB, 2 * MiB]
    assert segments.size == arena.bytes == arena.pinned_bytes == sum(pins.now.values()) == 10 * MiB
    fill(segments, b"hello")
    for part, fd in zip(segments, arena.fds(segments), strict=True):
        assert os.pread(fd, 5, 0) == b"hello"
        assert os.fstat(fd).st_blocks * 512 >= part.size  # really there, no SIGBUS later
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert not os.get_inheritable(fd)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)


@pytest.mark.parametrize("nbytes, held", [(0, 0), (1, 2 * MiB), (4 * MiB, 4 * MiB), (4 * MiB + 1, 6 * MiB)])
def test_sizes_are_rounded_to_a_huge_page(arena, nbytes, held):
    assert arena.take("llm", nbytes).size == held


def test_prepared_memory_is_taken_without_making_more(arena, pins):
    arena.prepare(wishing(llm=10 * MiB))
    assert arena.free_bytes == 10 * MiB
    made = pins.ever
    assert arena.take("llm", 10 * MiB).size == 10 * MiB
    assert pins.ever == made
    arena.prepare(wishing(llm=0))
    assert arena.free_bytes == 0


def test_everybody_who_wished_could_take_at_once(arena, pins):
    used = arena.take("llm", 6 * MiB)
    arena.give_back(used)  # good for this owner alone
    arena.prepare(wishing(llm=8 * MiB, ddp=8 * MiB, small=2 * MiB))
    made = pins.ever
    for owner, nbytes in (("ddp", 8 * MiB), ("small", 2 * MiB), ("llm", 8 * MiB)):
        assert arena.take(owner, nbytes).size == nbytes
    assert pins.ever == made
    arena.prepare(wishing(llm=8 * MiB, ddp=8 * MiB))  # they have it
    assert pins.ever == made


def test_wishes_that_come_meanwhile_are_seen(arena):
    later = iter([{"llm": 2 * MiB}, {"llm": 2 * MiB, "ddp": 4 * MiB}])
    last = {}
    arena.prepare(lambda: last.update(next(later, {})) or last)
    assert arena.free_bytes == 6 * MiB


def test_the_same_owner_gets_its_segments_again(arena, pins):
    first = arena.take("llm", 6 * MiB)
    arena.give_back(first)
    arena.prepare(wishing(llm=16 * MiB))
    assert set(arena.take("llm", 6 * MiB)) == set(first)


def test_what_held_one_owner_s_bytes_is_never_shown_to_another(arena):
    secret = arena.take("llm", 8 * MiB)
    fill(secret, b"secret")
    arena.give_back(secret)
    for _ in range(3):
        other = arena.take("ddp", 8 * MiB)
        assert set(other).isdisjoint(secret)
        assert all(b"secret" not in ctypes.string_at(part.address, part.size) for part in other)
        arena.give_back(other)


def test_at_the_limit_another_owner_s_free_segments_are_released_and_fresh_ones_made(pins):
    arena = make(pins, limit=8 * MiB)
    first = arena.take("llm", 8 * MiB)
    fill(first, b"secret")
    arena.give_back(first)
    second = arena.take("ddp", 8 * MiB)
    assert all(read(part, 6) == bytes(6) for part in second)
    assert arena.bytes == 8 * MiB
    arena.close()


def test_what_may_go_beyond_the_limit_is_refused_by_the_host_alone(pins, monkeypatch):
    arena = make(pins, limit=8 * MiB)
    held = arena.take("llm", 4 * MiB)
    arena.give_back(arena.take("vlm", 4 * MiB))
    with pytest.raises(NoRoom):
        arena.take("ddp", 6 * MiB)
    ring = arena.take("ddp", 6 * MiB, beyond=True)
    assert arena.bytes == held.size + ring.size, "what nobody uses goes first"
    monkeypatch.setattr("gcr.memory.arena.available_host_bytes", lambda: 2 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("ddp", 6 * MiB, beyond=True)
    assert caught.value.missing == 4 * MiB
    arena.close()


def test_no_room_says_what_is_missing_and_touches_nothing(pins):
    arena = make(pins, limit=8 * MiB)
    held = arena.take("llm", 4 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("ddp", 10 * MiB)
    assert caught.value.missing == 6 * MiB
    assert (pins.ever, arena.bytes) == (1, 4 * MiB)
    assert arena.take("ddp", 4 * MiB).size == 4 * MiB
    arena.give_back(held)
    arena.close()


def test_a_host_without_memory_is_no_room(arena, monkeypatch):
    monkeypatch.setattr(module, "available_host_bytes", lambda: 3 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("llm", 4 * MiB)
    assert caught.value.missing == MiB
    assert arena.take("llm", 2 * MiB).size == 2 * MiB


def failing_once(real, at: int, number: int):
    """The call of this number fails, counted from one."""
    calls = []

    def call(*given):
        calls.append(given)
        if len(calls) == at:
            raise OSError(number, os.strerror(number))
        return real(*given)

    return call


@pytest.mark.parametrize("number", [12, 28])
def test_memory_that_runs_out_on_the_way_is_no_room_and_all_is_taken_back(arena, pins, monkeypatch, number):
    monkeypatch.setattr("gcr.memory.memfiles.free_huge_bytes", lambda _size: 0)  # else ordinary pages take their place
    monkeypatch.setattr(os, "posix_fallocate", failing_once(os.posix_fallocate, 3, number))
    with pytest.raises(NoRoom) as caught:
        arena.take("llm", 16 * MiB)
    assert caught.value.missing >= SEGMENT
    assert (pins.now, arena.bytes) == ({}, 0)
    assert arena.take("llm", 16 * MiB).size == 16 * MiB


def test_a_driver_that_does_not_pin_leaves_nothing_behind(arena, pins):
    pins.fail_after = 2
    with pytest.raises(DriverError):
        arena.take("llm", 16 * MiB)
    assert (pins.now, arena.bytes) == ({}, 0)
    pins.fail_after = None
    assert arena.take("llm", 16 * MiB).size == 16 * MiB


def test_failures_without_end_use_up_no_addresses(arena, pins):
    pins.fail_after = 0
    for _ in range(100):
        with pytest.raises(DriverError):
            arena.take("llm", 4 * MiB)
    pins.fail_after = None
    assert arena.take("llm", 64 * MiB).size == 64 * MiB


def test_giving_back_twice_is_giving_back(arena):
    segments = arena.take("llm", 4 * MiB)
    arena.give_back(segments)
    arena.give_back(segments)
    assert arena.free_bytes == arena.bytes == 4 * MiB


def test_giving_back_what_was_recycled_since_does_not_touch_its_new_owner(pins):
    arena = make(pins, limit=4 * MiB)
    old = arena.take("llm", 4 * MiB)
    arena.give_back(old)
    new = arena.take("ddp", 4 * MiB)
    assert (new.parts[0].fd, new.parts[0].address) == (old.parts[0].fd, old.parts[0].address)
    arena.give_back(old)
    assert arena.free_bytes == 0
    arena.close()


def test_trimming_releases_what_held_somebody_s_bytes_first(arena, pins):
    used = arena.take("llm", 8 * MiB)
    arena.give_back(used)
    arena.prepare(wishing(llm=16 * MiB))
    made = pins.ever
    arena.trim(8 * MiB)
    assert arena.free_bytes == sum(pins.now.values()) == 8 * MiB
    assert set(arena.take("ddp", 8 * MiB)).isdisjoint(used)
    assert pins.ever == made


def test_filling_and_pinning_run_side_by_side(pins):
    arena = make(pins)
    all_four = threading.Barrier(4)
    pins.go_on = lambda: all_four.wait(PATIENCE)
    arena.prepare(wishing(llm=16 * MiB))
    assert pins.ever == 4
    arena.close()


def test_a_take_need_not_wait_for_all_of_a_preparation(pins):
    arena = make(pins, threads=1)
    rounds = threading.Semaphore(0)
    pins.go_on = lambda: rounds.acquire(timeout=PATIENCE)
    background = threading.Thread(target=arena.prepare, args=(wishing(llm=60 * MiB),))
    background.start()
    assert pins.begun.wait(PATIENCE)
    taking = threading.Thread(target=arena.take, args=("llm", 4 * MiB))
    taking.start()
    until(lambda: arena._turns._waiting, PATIENCE, "it waits for its turn")
    rounds.release()
    taking.join(PATIENCE / 2)
    assert not taking.is_alive()
    assert background.is_alive() and pins.ever == 1
    rounds.release(20)
    arena.close()
    background.join(5)
    assert not background.is_alive()


def test_a_closed_arena_makes_nothing_more(pins):
    arena = make(pins)
    held = arena.take("llm", 4 * MiB)
    copy = os.dup(held.parts[0].fd)
    fill(held, b"mine")
    arena.close()
    arena.close()
    assert (pins.now, arena.bytes) == ({}, 0)
    assert os.pread(copy, 4, 0) == b"mine"  # another holder keeps the bytes
    os.close(copy)
    with pytest.raises(RolledBack, match="closed"):
        arena.take("llm", 1)


def test_a_driver_that_does_not_unpin_does_not_keep_the_memory(pins, caplog):
    arena = make(pins)
    (part,) = arena.take("llm", 4 * MiB)
    pins.now.clear()
    arena.close()
    assert "unpinning" in caplog.text
    with pytest.raises(OSError):
        os.fstat(part.fd)


def test_segments_of_another_worker_are_adopted_with_their_bytes(arena, pins):
    ours = arena.take("llm", 10 * MiB)
    fill(ours, b"state")
    other = make(pins)
    ready = []
    fds = [os.dup(fd) for fd in arena.fds(ours)]
    theirs = other.adopt("llm", fds, [part.size for part in ours], ready.append)
    assert ready == list(theirs)
    assert [part.size for part in theirs] == [part.size for part in ours]
    assert all(read(part, 5) == b"state" for part in theirs)
    assert other.bytes == 10 * MiB
    other.close()


def test_an_adopted_segment_belongs_to_the_pool_and_its_owner_once_given_back(arena, pins):
    other = make(pins, limit=4 * MiB)
    theirs = other.adopt("llm", [os.dup(fd) for fd in arena.fds(arena.take("llm", 4 * MiB))])
    other.give_back(theirs)
    assert set(other.take("llm", 4 * MiB)) == set(theirs)
    other.give_back(theirs)
    assert set(other.take("ddp", 4 * MiB)).isdisjoint(theirs)
    assert other.bytes == 4 * MiB
    other.close()


def test_what_was_handed_on_is_never_taken_again_and_keeps_its_bytes(arena, pins):
    ours = arena.take("llm", 8 * MiB)
    fill(ours, b"state")
    fds = [os.dup(fd) for fd in arena.fds(ours)]
    arena.hand_on(ours)
    arena.hand_on(ours)
    arena.give_back(ours)
    assert (arena.bytes, pins.now) == (0, {})
    fill(arena.take("llm", 8 * MiB), b"other")
    assert all(os.pread(fd, 5, 0) == b"state" for fd in fds)
    for fd in fds:
        os.close(fd)


def test_a_segment_larger_than_ours_is_adopted_whole(pins):
    large, small = make(pins, segment=16 * MiB), make(pins, segment=4 * MiB)
    held = large.take("llm", 16 * MiB)
    ctypes.memmove(held.parts[0].address + 15 * MiB, b"end", 3)
    (part,) = small.adopt("llm", [os.dup(held.parts[0].fd)])
    assert read(Segment(-1, part.address + 15 * MiB, 3), 3) == b"end"
    beside = small.take("llm", 4 * MiB).parts[0]
    assert not part.address <= beside.address < part.address + part.size
    small.close()
    large.close()


def test_the_first_adopted_segment_is_ready_while_later_ones_are_being_pinned(arena, pins):
    held = arena.take("llm", 32 * MiB)
    other = make(pins, threads=1)
    pins.delay = 0.03
    when = []
    other.adopt("llm", [os.dup(fd) for fd in arena.fds(held)], ready=lambda _: when.append(time.monotonic()))
    assert when[-1] - when[0] > 0.1
    other.close()


def sealed(size: int, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


STRANGERS = {
    "unsealed": lambda: sealed(4 * MiB, fcntl.F_SEAL_GROW),
    "read-only": lambda: sealed(4 * MiB, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE),
    "empty": lambda: sealed(0, fcntl.F_SEAL_SHRINK),
    "odd": lambda: sealed(4096, fcntl.F_SEAL_SHRINK),
    "other size": lambda: sealed(2 * MiB, fcntl.F_SEAL_SHRINK),
    "device": lambda: os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC),
    "pipe": lambda: [os.close(w), r][1] if (r := (p := os.pipe())[0]) and (w := p[1]) else -1,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_descriptor_that_is_no_segment_is_refused_and_every_one_closed(arena, pins, kind):
    good = sealed(4 * MiB, fcntl.F_SEAL_SHRINK)
    with pytest.raises(NotASegment):
        arena.adopt("llm", [good, STRANGERS[kind]()], [4 * MiB, 4 * MiB])
    assert (pins.now, arena.bytes) == ({}, 0)


@pytest.mark.parametrize("fault", ["pin", "ready"])
def test_a_failed_adoption_leaves_nothing(arena, pins, fault):
    fds = [sealed(4 * MiB, fcntl.F_SEAL_SHRINK) for _ in range(5)]

    def ready(_segment: Segment) -> None:
        if fault == "ready":
            raise RolledBack("no more")

    pins.fail_after = 2 if fault == "pin" else None
    with pytest.raises(RolledBack):
        arena.adopt("llm", fds, ready=ready)
    assert (pins.now, arena.bytes) == ({}, 0)


def refusing(_size):
    raise OSError(12, "mmap")


def test_a_kernel_without_addresses_is_no_room_and_leaves_nothing(pins, monkeypatch):
    arena = make(pins)
    monkeypatch.setattr(hostmap, "reserve", refusing)
    with pytest.raises(NoRoom, match="address"):
        arena.adopt("llm", [sealed(4 * MiB, fcntl.F_SEAL_SHRINK) for _ in range(3)])
    for call in (arena.take, arena.promise):
        with pytest.raises(NoRoom, match="address"):
            call("llm", 4 * MiB)
    assert arena.bytes == 0
    monkeypatch.undo()
    assert arena.take("llm", 4 * MiB).size == 4 * MiB
    arena.close()


def test_what_a_job_brings_back_meets_no_limit(pins):
    """Thirty processes return to a worker that may make less than they have."""
    large, small = make(pins, limit=400 * MiB), make(pins, limit=4 * MiB)
    for process in range(30):
        held = large.take(f"ddp/{process}", 12 * MiB)
        fill(held, b"state")
        back = small.adopt(f"ddp/{process}", [os.dup(fd) for fd in large.fds(held)])
        assert all(read(part, 5) == b"state" for part in back)
        large.hand_on(held)
        small.give_back(back)
        assert set(small.take(f"ddp/{process}", 12 * MiB)) == set(back), "it can leave again"
    small.close()
    large.close()


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_short_jobs_in_a_row_leave_nothing(pins, count):
    """Beside one that stays."""
    arena = make(pins, limit=64 * MiB)
    stays = arena.take("llm", 2 * MiB)
    fill(stays, b"stays")
    wishes = {"llm": 2 * MiB}
    for number in range(count):
        owner = f"short-{number}"
        part = arena.take(owner, 2 * MiB)
        assert read(part.parts[0], 4) == bytes(4)
        fill(part, b"mine")
        arena.give_back(part)
        arena.end(owner)
        arena.give_up_spare(lambda: wishes)
    assert (arena.bytes, sum(pins.now.values())) == (2 * MiB, 2 * MiB)
    assert len(arena._maker.addresses._reserved) == len(arena._maker.addresses._free) == 1
    assert read(stays.parts[0], 5) == b"stays"
    arena.close()


def test_what_an_ended_owner_had_goes_and_what_others_have_stays(arena, pins):
    for owner in ("llm", "ddp"):
        arena.give_back(arena.take(owner, 6 * MiB))
    read_still = arena.take("llm", 6 * MiB)
    reader = hold_still(read_still.parts[0].fd)
    arena.give_back(read_still)
    arena.end("llm")
    assert arena.bytes == sum(pins.now.values()) == 6 * MiB
    os.close(reader)
    arena.end("llm")
    made = pins.ever
    assert arena.take("ddp", 6 * MiB).size == 6 * MiB
    assert pins.ever == made


def test_what_no_living_owner_wants_goes(arena, pins):
    wishes = {"llm": 6 * MiB, "ddp": 8 * MiB}
    arena.prepare(lambda: wishes)
    assert arena.free_bytes == 14 * MiB
    del wishes["ddp"]
    arena.give_up_spare(lambda: wishes)
    assert arena.free_bytes == sum(pins.now.values()) == 6 * MiB
    made = pins.ever
    arena.prepare(lambda: wishes)
    assert pins.ever == made, "what was wanted is there"


def test_how_much_of_a_wish_is_there(arena):
    assert arena.ready({"llm": 10 * MiB}) == {"llm": 0}
    taken = arena.take("llm", 4 * MiB)
    assert arena.ready({"llm": 10 * MiB, "ddp": 2 * MiB}) == {"llm": 4 * MiB, "ddp": 0}
    arena.give_back(taken)
    arena.prepare(lambda: {"llm": 10 * MiB})
    assert arena.ready({"llm": 10 * MiB}) == {"llm": 10 * MiB}
    assert sum(arena.ready({"llm": 12 * MiB, "ddp": 4 * MiB}).values()) == 10 * MiB


def in_page_tables(address: int, size: int) -> int:
    """Bytes, by the kernel's word."""
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(address // mmap.PAGESIZE * 8)
        entries = pages.read(size // mmap.PAGESIZE * 8)
    return mmap.PAGESIZE * sum(entries[at] >> 7 for at in range(7, len(entries), 8))  # a little-endian word's top bit


def test_what_is_pinned_is_in_the_page_tables_already(pins):
    """A driver that pins pages one by one would have the kernel enter them one by one, and all other pins wait."""
    one, other, entered = make(pins), make(pins), []
    pins.looking = lambda address, size: entered.append(in_page_tables(address, size))
    held = one.take("llm", 16 * MiB)
    other.adopt("llm", [os.dup(fd) for fd in one.fds(held)])
    one.keep(one.promise("llm", 16 * MiB))
    assert entered == [SEGMENT] * 12
    one.close()
    other.close()


def test_a_caller_that_waits_has_more_threads_than_the_background(pins):
    arena = Arena(pins.pin, pins.unpin, segment_bytes=SEGMENT, limit_bytes=128 * MiB, threads=2, hurry=8)
    all_eight, at_once, most = threading.Barrier(8), [], []
    pins.go_on = lambda: all_eight.wait(PATIENCE)
    arena.take("llm", 32 * MiB)
    pins.go_on = lambda: at_once.append(1) or time.sleep(0.01) or most.append(len(at_once)) or at_once.pop()
    arena.prepare(wishing(ddp=32 * MiB))
    assert max(most) <= 2
    arena.close()


def test_segments_are_as_many_as_threads_where_they_are_not_too_small(pins, monkeypatch):
    monkeypatch.setattr(module, "LEAST_PIECE", 2 * MiB)
    arena = Arena(pins.pin, pins.unpin, segment_bytes=8 * MiB, limit_bytes=512 * MiB, threads=2, hurry=4)
    assert [part.size for part in arena.take("llm", 64 * MiB)] == [4 * MiB] * 16
    assert [part.size for part in arena.take("llm", 3 * MiB)] == [2 * MiB] * 2
    assert [part.size for part in arena.take("llm", 201 * MiB)] == [8 * MiB] * 25 + [2 * MiB]
    arena.close()


def test_many_threads_take_and_give_back(pins):
    arena = make(pins, limit=64 * MiB)
    wrong = []

    def work(owner: str) -> None:
        for _ in range(10):
            segments = arena.take(owner, 6 * MiB)
            seen = {read(part, 4) for part in segments}
            if not seen <= {bytes(4), owner.encode()}:
                wrong.append((owner, seen))
            fill(segments, owner.encode())
            arena.give_back(segments)

    threads = [threading.Thread(target=work, args=(f"job{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert arena.bytes <= 64 * MiB
    arena.close()


def test_what_is_promised_is_there_once_it_was_kept(arena, pins):
    own, fresh = arena.take("llm", 4 * MiB), arena.take("ddp", 4 * MiB)
    fill(own, b"own")
    arena.give_back(own)
    made = pins.ever
    promised = arena.promise("llm", 10 * MiB)
    assert [part.size for part in promised] == [4 * MiB, 4 * MiB, 2 * MiB]
    assert promised.parts[0] == own.parts[0], "what it had is there already"
    assert (pins.ever, arena.bytes, arena.pinned_bytes) == (made, 14 * MiB, 8 * MiB)
    for fd in arena.fds(promised)[1:]:
        assert os.fstat(fd).st_blocks == 0
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    arena.keep(promised)
    fill(promised, b"later")
    assert [os.pread(fd, 5, 0) for fd in arena.fds(promised)] == [b"later"] * 3
    assert all(os.fstat(part.fd).st_blocks * 512 >= part.size for part in promised)
    assert arena.bytes == arena.pinned_bytes == sum(pins.now.values()) == 14 * MiB
    arena.keep(promised)
    assert pins.ever == made + 2, "kept twice is kept"
    for segments in (promised, fresh):
        arena.give_back(segments)
    assert arena.free_bytes == arena.bytes == 14 * MiB


def test_what_is_prepared_is_not_promised(arena, pins):
    arena.prepare(wishing(llm=8 * MiB))
    made = pins.ever
    promised = arena.promise("llm", 8 * MiB)
    arena.keep(promised)
    assert (pins.ever, arena.bytes, arena.pinned_bytes) == (made, 8 * MiB, 8 * MiB)


@pytest.mark.parametrize("end", ["give_back", "hand_on", "close"])
def test_a_promise_that_is_not_kept_leaves_nothing(arena, caplog, end):
    for _ in range(20):  # nor addresses: there are 64
        promised = arena.promise("llm", 16 * MiB)
        if end == "close":
            break
        getattr(arena, end)(promised)
        assert (arena.bytes, arena.free_bytes) == (0, 0)
    arena.close()
    assert (arena.bytes, arena.pinned_bytes) == (0, 0)
    arena.give_back(promised)
    assert caplog.records == [], "it unpinned what nobody had pinned"
    with pytest.raises(RolledBack, match="closed"):
        arena.keep(promised)


def test_a_promise_waits_for_no_preparation(arena, pins):
    promise = threading.Event()
    pins.go_on = lambda: promise.wait(PATIENCE)
    background = threading.Thread(target=arena.prepare, args=(wishing(llm=12 * MiB),))
    background.start()
    assert pins.begun.wait(PATIENCE)
    promised = arena.promise("ddp", 8 * MiB)
    assert pins.ever == 0
    promise.set()
    background.join()
    assert arena.pinned_bytes == arena.bytes - 8 * MiB
    arena.keep(promised)


@pytest.mark.parametrize("kept_by_host", [False, True])
def test_where_somebody_would_have_to_give_up_theirs_it_is_taken(pins, monkeypatch, kept_by_host):
    arena = make(pins, limit=64 * MiB if kept_by_host else 8 * MiB)
    arena.give_back(arena.take("ddp", 8 * MiB))
    if kept_by_host:
        monkeypatch.setattr(module, "available_host_bytes", lambda: 8 * MiB - sum(pins.now.values()))
    promised = arena.promise("llm", 4 * MiB)
    assert arena.pinned_bytes == arena.bytes == 8 * MiB
    with pytest.raises(NoRoom):
        arena.promise("llm", 6 * MiB)
    arena.give_back(promised)
    arena.close()


def test_what_is_being_prepared_counts(pins):
    arena = make(pins, limit=20 * MiB)
    pins.delay = 0.3
    wishes = iter([{"llm": 16 * MiB}, {}])
    background = threading.Thread(target=arena.prepare, args=(lambda: next(wishes),))
    background.start()
    pins.begun.wait(10)
    promised = arena.promise("ddp", 8 * MiB)
    background.join()
    assert promised.size == 8 * MiB
    assert arena.bytes <= 20 * MiB
    arena.close()


def test_what_is_promised_is_not_given_to_somebody_else(arena, pins, monkeypatch):
    monkeypatch.setattr(module, "available_host_bytes", lambda: 8 * MiB - sum(pins.now.values()))
    promised = arena.promise("llm", 6 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("ddp", 4 * MiB)
    assert caught.value.missing == 2 * MiB
    with pytest.raises(NoRoom):
        arena.promise("ddp", 4 * MiB)
    arena.keep(promised)


@pytest.mark.parametrize("fault", ["memory", "pin"])
def test_a_promise_that_cannot_be_kept_is_an_error_and_leaves_nothing(arena, pins, monkeypatch, fault):
    promised = arena.promise("llm", 12 * MiB)
    if fault == "pin":
        pins.fail_after = 2
    else:
        monkeypatch.setattr(os, "posix_fallocate", failing_once(os.posix_fallocate, 3, 28))
    with pytest.raises(NoRoom if fault == "memory" else DriverError):
        arena.keep(promised)
    assert arena.pinned_bytes == sum(pins.now.values()) == 8 * MiB
    arena.give_back(promised)
    assert (arena.bytes, arena.free_bytes) == (8 * MiB, 8 * MiB)
    pins.fail_after = None
    assert arena.take("llm", 64 * MiB).size == 64 * MiB


def test_memory_calls_that_fail_raise():
    with pytest.raises(OSError, match="mmap"):
        hostmap.reserve(1 << 62)
    base = hostmap.reserve(mmap.PAGESIZE)
    with pytest.raises(OSError, match="mmap"):
        hostmap.map_shared(base, mmap.PAGESIZE, -1)
    hostmap.unreserve(base, mmap.PAGESIZE)
    with pytest.raises(OSError, match="munmap"):
        hostmap.unreserve(base + 1, mmap.PAGESIZE)


def test_populate_enters_every_page_those_of_the_last_piece_too(monkeypatch):
    monkeypatch.setattr(hostmap, "POPULATED_AT_ONCE", 150 * mmap.PAGESIZE)
    base, fd = hostmap.reserve(HUGE_PAGE), filled_memfd(HUGE_PAGE)
    hostmap.map_shared(base, HUGE_PAGE, fd)
    hostmap.populate(base, HUGE_PAGE)
    pages = HUGE_PAGE // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:  # 64 bits a page; the last: it is entered
        entries = struct.unpack(f"{pages}Q", os.pread(pagemap.fileno(), 8 * pages, base // mmap.PAGESIZE * 8))
    hostmap.unreserve(base, HUGE_PAGE)
    os.close(fd)
    assert sum(entry >> 63 for entry in entries) == pages


def written(segments):
    for part in segments:
        ctypes.memset(part.address, 7, part.size)
    return segments


def test_what_somebody_reads_is_not_written_again_while_they_do(arena):
    first = written(arena.take("llm", 2 * SEGMENT))
    readers = [hold_still(part.fd) for part in first]
    assert not arena.may_be_written(first)
    arena.give_back(first)
    second = arena.take("llm", 2 * SEGMENT)
    assert not {*first} & {*second}
    arena.trim(0)
    assert os.pread(readers[0], 4, 0) == bytes([7] * 4)
    for fd in readers:
        os.close(fd)
    arena.give_back(second)
    assert {*first} & {*arena.take("llm", 4 * SEGMENT)}


def test_a_reader_that_dies_reads_no_more(arena):
    segments = arena.take("llm", SEGMENT)
    (part,) = segments
    code = HOLDER
    with subprocess.Popen(
        [sys.executable, "-c", code, str(part.fd)],
        pass_fds=[part.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout.readline() == b"held\n"
        assert not arena.may_be_written(segments)
        reader.kill()
    assert arena.may_be_written(segments)


def test_no_room_beside_what_is_read_says_so(pins):
    arena = make(pins, limit=3 * SEGMENT)
    first = arena.take("llm", 2 * SEGMENT)
    reader = hold_still(first.parts[0].fd)
    arena.give_back(first)
    for owner, needed in (("llm", 3 * SEGMENT), ("other", 3 * SEGMENT)):
        with pytest.raises(NoRoom, match=r"short; 4\.0 MiB are free again once the images"):
            arena.take(owner, needed)
    assert arena.bytes == 2 * SEGMENT
    os.close(reader)
    assert arena.take("other", 3 * SEGMENT).size == 3 * SEGMENT
    arena.close()
