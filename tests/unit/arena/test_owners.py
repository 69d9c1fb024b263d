"""The arena on real memory of this machine: segments of other workers, and owners that come and end."""

import ctypes
import fcntl
import os

import pytest
from arenas import MiB, fill, make, read

from gcr.errors import DriverError, NoRoom, RolledBack
from gcr.memory import hostmap
from gcr.memory.arena import NotASegment, Segment
from gcr.memory.memfiles import hold_still


def test_segments_of_another_worker_are_adopted_with_their_bytes(arena, pins):
    ours = arena.take("llm", 10 * MiB)
    fill(ours, b"state")
    other = make(pins)
    theirs = adopted(other, "llm", ours)
    assert [part.size for part in theirs] == [part.size for part in ours]
    assert all(read(part, 5) == b"state" for part in theirs)
    assert other.bytes == 10 * MiB
    other.close()


def test_an_adopted_segment_belongs_to_the_pool_and_its_owner_once_given_back(arena, pins):
    other = make(pins, limit=4 * MiB)
    theirs = other.adopt("llm", [os.dup(fd) for fd in arena.take("llm", 4 * MiB).fds])
    other.give_back(theirs)
    assert set(other.take("llm", 4 * MiB)) == set(theirs)
    other.give_back(theirs)
    assert set(other.take("ddp", 4 * MiB)).isdisjoint(theirs)
    assert other.bytes == 4 * MiB
    other.close()


def test_what_was_handed_on_is_never_taken_again_and_keeps_its_bytes(arena, pins):
    ours = arena.take("llm", 8 * MiB)
    fill(ours, b"state")
    fds = [os.dup(fd) for fd in ours.fds]
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


def adopted(arena, owner, segments):
    return arena.adopt(owner, [os.dup(part.fd) for part in segments], [part.size for part in segments])


def test_adopted_segments_are_pinned_once_their_owner_takes_them_again(arena, pins):
    other = make(pins)
    held = arena.take("llm", 10 * MiB)
    made, theirs = pins.ever, adopted(other, "llm", held)
    assert (pins.ever, other.bytes, other.pinned_bytes) == (made, 10 * MiB, 0)
    assert other.unpinned(theirs) == {*theirs}
    other.give_back(theirs)
    assert other.pinned_bytes == 0
    fill(other.take("ddp", 4 * MiB), b"other")
    first = other.take("llm", 4 * MiB)
    assert {*first} < {*theirs}
    assert (other.pinned_bytes, other.unpinned(theirs)) == (8 * MiB, {*theirs} - {*first})
    other.give_back(first)
    made = pins.ever
    assert other.take("llm", 4 * MiB) == first, "what is pinned comes first"
    assert pins.ever == made
    rest = other.promise("llm", 6 * MiB)
    assert ({*rest}, pins.ever) == ({*theirs} - {*first}, made), "a promise pins nothing"
    other.keep(rest)
    assert other.pinned_bytes == other.bytes == 14 * MiB
    other.close()


def test_adopted_segments_are_pinned_in_the_background_where_they_are_wished(arena, pins):
    other = make(pins, threads=2)
    for owner in ("llm", "ddp"):
        other.give_back(adopted(other, owner, arena.take(owner, 12 * MiB)))
    wishes = {"llm": 14 * MiB}
    assert other.ready(wishes) == {"llm": 0}
    rounds = []
    other.prepare(lambda: wishes, lambda: rounds.append(other.pinned_bytes))
    assert rounds == [0, 8 * MiB, 12 * MiB, 14 * MiB]
    assert (other.ready(wishes), other.bytes) == ({"llm": 14 * MiB}, 26 * MiB)
    other.end("ddp")
    assert other.bytes == other.pinned_bytes == 14 * MiB
    other.close()


def test_a_pin_that_fails_takes_nothing_and_what_was_pinned_stays_so(arena, pins):
    other = make(pins, threads=1)
    theirs = adopted(other, "llm", arena.take("llm", 12 * MiB))
    other.give_back(theirs)
    pins.fail_after = pins.ever + 1
    for call in (lambda: other.take("llm", 12 * MiB), lambda: other.prepare(lambda: {"llm": 12 * MiB})):
        with pytest.raises(DriverError):
            call()
        assert (other.free_bytes, other.pinned_bytes) == (12 * MiB, 4 * MiB)
    pins.fail_after = None
    assert {*other.take("llm", 12 * MiB)} == {*theirs}
    other.close()


@pytest.mark.parametrize("end", ["hand_on", "close", "end"])
def test_what_was_never_pinned_is_not_unpinned(arena, pins, caplog, end):
    other = make(pins)
    theirs = adopted(other, "llm", arena.take("llm", 8 * MiB))
    if end == "hand_on":
        other.hand_on(theirs)
    elif end == "end":
        other.give_back(theirs)
        other.end("llm")
    other.close()
    assert (other.bytes, other.pinned_bytes, caplog.records) == (0, 0, [])


def test_a_closed_arena_takes_no_segments_over(arena, pins):
    other = make(pins)
    other.close()
    with pytest.raises(RolledBack, match="closed"):
        adopted(other, "llm", arena.take("llm", 8 * MiB))
    assert other.bytes == 0


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
        back = small.adopt(f"ddp/{process}", [os.dup(fd) for fd in held.fds])
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
