"""The arena on real memory of this machine: pages, promises, and what is read while it is given back."""

import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from arenas import PATIENCE, SEGMENT, MiB, failing_once, fill, make, read, wishing

from gcr.errors import DriverError, NoRoom, RolledBack
from gcr.memory import arena as module
from gcr.memory import hostmap
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.arena import Arena
from gcr.memory.memfiles import filled_memfd, hold_still

HOLDER = """
import sys
from gcr.memory.memfiles import hold_still
hold_still(int(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


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
    other.keep(other.adopt("llm", [os.dup(fd) for fd in held.fds]))
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
    for fd in promised.fds[1:]:
        assert os.fstat(fd).st_blocks == 0
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    arena.keep(promised)
    fill(promised, b"later")
    assert [os.pread(fd, 5, 0) for fd in promised.fds] == [b"later"] * 3
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
    assert caplog.records == [], "it unpinned memory that was not pinned"
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
def test_room_that_another_would_have_to_give_up_is_taken(pins, monkeypatch, kept_by_host):
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


def test_promised_room_is_not_given_to_another(arena, pins, monkeypatch):
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


def test_memory_that_is_read_is_not_written_again_meanwhile(arena):
    first = written(arena.take("llm", 2 * SEGMENT))
    readers = [hold_still(part.fd) for part in first]
    assert not first.may_be_written()
    arena.give_back(first)
    second = arena.take("llm", 2 * SEGMENT)
    assert not {*first} & {*second}
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
        assert not segments.may_be_written()
        reader.kill()
    assert segments.may_be_written()


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
