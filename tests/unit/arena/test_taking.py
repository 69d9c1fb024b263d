"""The arena on real memory of this machine: what is taken, given back, and refused for want of room."""

import ctypes
import fcntl
import os
import threading

import pytest
from arenas import PATIENCE, SEGMENT, MiB, failing_once, fill, make, read, wishing

from gcr.errors import DriverError, NoRoom, RolledBack
from gcr.memory import arena as module
from gcr.testing.machine import until


def test_what_is_taken_is_mapped_pinned_filled_and_sealed(arena, pins):
    segments = arena.take("llm", 10 * MiB)
    assert [part.size for part in segments] == [4 * MiB, 4 * MiB, 2 * MiB]
    assert segments.size == arena.bytes == arena.pinned_bytes == sum(pins.now.values()) == 10 * MiB
    fill(segments, b"hello")
    for part, fd in zip(segments, segments.fds, strict=True):
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


def test_all_that_wished_could_take_at_once(arena, pins):
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
    assert arena.bytes == held.size + ring.size, "unused memory goes first"
    monkeypatch.setattr("gcr.memory.arena.available_host_bytes", lambda: 2 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("ddp", 6 * MiB, beyond=True)
    assert (caught.value.missing, caught.value.message) == (4 * MiB, "host memory is 4.0 MiB short")
    arena.close()


@pytest.mark.parametrize(("host", "said"), [(5, "gcr's limit of 8.0 MiB of host memory"), (3, "host memory")])
def test_no_room_names_the_limit_or_the_host_whichever_lacks_more(pins, monkeypatch, host, said):
    arena = make(pins, limit=8 * MiB)
    held = arena.take("llm", 4 * MiB)
    monkeypatch.setattr(module, "available_host_bytes", lambda: host * MiB)
    with pytest.raises(NoRoom, match=rf"^{said} is {6 if host > 4 else 7}\.0 MiB short$"):
        arena.take("ddp", 10 * MiB)
    arena.give_back(held)
    arena.close()


def test_no_room_says_what_is_missing_and_touches_nothing(pins):
    arena = make(pins, limit=8 * MiB)
    held = arena.take("llm", 4 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("ddp", 10 * MiB)
    assert caught.value.missing == 6 * MiB
    assert caught.value.message == "gcr's limit of 8.0 MiB of host memory is 6.0 MiB short"
    assert "arena_share" in caught.value.hint and "docs/troubleshooting.md#host-memory" in caught.value.hint
    assert (pins.ever, arena.bytes) == (1, 4 * MiB)
    assert arena.take("ddp", 4 * MiB).size == 4 * MiB
    arena.give_back(held)
    arena.close()


def test_a_host_without_memory_is_no_room(arena, monkeypatch):
    monkeypatch.setattr(module, "available_host_bytes", lambda: 3 * MiB)
    with pytest.raises(NoRoom) as caught:
        arena.take("llm", 4 * MiB)
    assert caught.value.missing == MiB
    assert caught.value.message == "host memory is 1.0 MiB short"
    assert arena.take("llm", 2 * MiB).size == 2 * MiB


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
