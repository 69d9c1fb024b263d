"""Parts of memory that are copied aside: where they lie in handles, and the worker's copy of them."""

import ctypes
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Lock
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from host_device import LONG, Device, fails, holding
from hypothesis import given
from hypothesis import strategies as st

from gcr.api.requests import SaveSpansRequest
from gcr.daemon.commands import save
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.save import Program, run
from gcr.daemon.jobs import Job
from gcr.daemon.permission import Caller
from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Move
from gcr.engine.aside import parts_of
from gcr.engine.node import World
from gcr.errors import GcrError, NoRoom, NoSuchJob, NotOurs, PeerGone, RolledBack, UnsupportedState
from gcr.imageerrors import ImageFailed
from gcr.job.process import Process
from gcr.job.tracking import Allocation, AllocationTable
from gcr.memory.arena import Segments
from gcr.processes import ProcessIdentity
from gcr.protocol.wire import MappingRecord
from gcr.worker import aside
from gcr.worker.aside import Piece, divide, read_in_place
from gcr.worker.hostcopy import HostCopy
from gcr.worker.snapshot import Part, spare_bytes
from gcr.worker.taking import copy_on, give_up_snapshot

MIB = 1 << 20
ME, FORMER = ProcessIdentity(77, 2), ProcessIdentity(77, 1)
SIZES = (100, 4096, 70_000)
GRANULE = 4  # of rooms beside memory of these sizes


def device(spare: int = 4 * MIB) -> Device:
    made = Device(spare=spare)
    for id, size in enumerate(SIZES, 1):
        made.put(id, random.Random(id).randbytes(size))
    return made


def on_the_host(copy: HostCopy, nbytes: int) -> bytes:
    assert copy.segments
    return b"".join(ctypes.string_at(part.address, part.size) for part in copy.segments.parts)[:nbytes]


def set_aside(copy: HostCopy, pieces: Sequence[Piece], fills: bool = False) -> int:
    return aside.set_aside(copy, pieces, fills, time.monotonic() + LONG, Lock())


def piece(id: int) -> st.SearchStrategy[Piece]:
    size = SIZES[id - 1]
    cut = st.integers(0, size - 1).flatmap(lambda at: st.tuples(st.just(at), st.integers(1, size - at)))
    return st.builds(lambda cut, stays: (id, *cut, stays), cut, st.booleans())


pieces_ = st.lists(st.integers(1, len(SIZES)).flatmap(piece), min_size=1, max_size=6)


@given(pieces_, st.booleans(), st.sampled_from([0, 8192, 100_000, 4 * MIB]), st.sampled_from([4, 1000, 4096, 4 * MIB]))
def test_the_bytes_are_those_of_the_call_wherever_they_are_read(
    pieces: Sequence[Piece], fills: bool, about: int, room: int
) -> None:
    """The program writes to what is copied aside at once, and to all once what is in place was read.

    room: bytes of each piece of room
    """
    held = device(about)
    spare = spare_bytes(held.memory())
    whole = b"".join(held.holds(id)[at : at + size] for id, at, size, _ in pieces)
    must = sum(size for _, _, size, stays in pieces if not stays)
    with holding(held) as copy, patch.object(aside, "ROOM_BYTES", room):
        if -(-must // GRANULE) * GRANULE > spare:
            with pytest.raises(NoRoom):
                set_aside(copy, pieces, fills)
            return
        left = set_aside(copy, pieces, fills)
        moved = len(whole) - left
        assert moved == must if not fills else moved == len(whole) or moved > spare - 4096 - GRANULE
        assert len(held.room) == -(-moved // room)
        assert (held.moved, sum(map(len, held.room.values())) <= max(spare, must + GRANULE)) == (0, True)
        assert copy.snapshot
        overwrite(held, copy.snapshot.in_place)
        assert read_in_place(copy, LONG).bytes == left == held.moved
        overwrite(held)  # the program goes on
        assert copy_on(copy, LONG, lambda _: None).bytes == moved
        assert on_the_host(copy, len(whole)) == whole
        assert held.room == {}
        copy.give_up()


def overwrite(held: Device, but: Sequence[Part] = ()) -> None:
    for id, size in enumerate(SIZES, 1):
        kept = [(part.at, held.holds(id)[part.at : part.at + part.size]) for part in but if part.id == id]
        held.memory_of[id].raw = bytes(size)
        for at, data in kept:
            ctypes.memmove(ctypes.addressof(held.memory_of[id]) + at, data, len(data))


def test_a_little_is_copied_aside_also_on_a_device_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    held = device()
    monkeypatch.setattr(held, "memory", lambda: DeviceMemory(used=95_000, total=100_000, by_pid={}))
    with holding(held) as copy:
        with pytest.raises(NoRoom):
            set_aside(copy, [(3, 0, 316, False), (3, 0, 10_000, True)], fills=True)
        assert set_aside(copy, [(3, 0, 300, False), (3, 0, 10_000, True)], fills=True) == 10_000
        assert [*map(len, held.room.values())] == [300]


def test_a_piece_is_cut_between_the_two_ways() -> None:
    found = divide([(1, 0, 9000, True), (2, 5, 10, False), (3, 7, 30, True)], more=5000)
    assert found == ([Part(1, 0, 0, 4096), Part(2, 5, 9000, 10), Part(3, 7, 9010, 30)], [Part(1, 4096, 4096, 4904)])


def test_memory_that_is_freed_before_it_is_read_in_place_costs_the_save() -> None:
    held = device()
    with holding(held) as copy:
        pieces = [(1, 0, 100, True), (2, 0, 4096, True)]
        assert set_aside(copy, pieces) == 4196
        del copy.memory.specs[2]
        copy.memory.ranges = [each for each in copy.memory.ranges if 2 not in each.offsets]
        with pytest.raises(RolledBack, match="4096 bytes of handle 2 are not held here"):
            read_in_place(copy, LONG)
        copy.give_up()


@pytest.mark.parametrize("piece", [(9, 0, 1), (1, 0, 101), (1, 99, 2), (1, -1, 1), (1, 0, 0)])
def test_pieces_of_no_held_memory_are_refused(piece: tuple[int, int, int]) -> None:
    held = device()
    with holding(held) as copy:
        with pytest.raises(RolledBack, match="not held here"):
            set_aside(copy, [(1, 0, 100, False), (*piece, False)], fills=True)
        assert (held.room, held.moves) == ({}, 0)


def test_where_device_or_host_have_no_room_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = device()
    with holding(held) as copy:
        with pytest.raises(NoRoom) as caught:
            set_aside(copy, [(3, 0, 70_000, False)] * 80)
        assert (caught.value.missing, held.moves) == (5_600_000 - spare_bytes(held.memory()), 0)
        monkeypatch.setattr(copy.arena, "promise", fails(NoRoom("host", missing=1)))
        with pytest.raises(NoRoom, match="host"):
            set_aside(copy, [(1, 0, 100, False)])
        assert (held.room, copy.room_bytes, copy.segments) == ({}, 0, None)


def test_a_device_that_is_full_before_all_room_is_made_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    held = device()
    made, create = list[HandleSpec](), held.create

    def creates(handles: Sequence[HandleSpec]) -> DeviceRange:
        made.extend(handles)
        return create(handles) if len(made) < 3 else fails(NoRoom("device", missing=1))()

    monkeypatch.setattr(held, "create", creates)
    monkeypatch.setattr(aside, "ROOM_BYTES", 4096)
    with holding(held) as copy:
        with pytest.raises(NoRoom, match="device"):
            set_aside(copy, [(3, 0, 70_000, False)])
        assert (len(made), held.moves, held.room, copy.room_bytes) == (3, 2, {}, 0)


def test_room_that_another_program_needs_is_given_back_before_and_after_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = device()
    with holding(held) as copy:
        promise = copy.arena.promise

        def promises(owner: str, nbytes: int) -> Segments:
            give_up_snapshot(copy, time.monotonic())
            return promise(owner, nbytes)

        monkeypatch.setattr(copy.arena, "promise", promises)
        with pytest.raises(NoRoom, match="another program"):
            set_aside(copy, [(1, 0, 100, False)])
        copy.give_up()
    with holding(held) as copy:
        set_aside(copy, [(1, 0, 100, False)])
        give_up_snapshot(copy, time.monotonic())
        with pytest.raises(ImageFailed, match="needed the room"):
            copy_on(copy, LONG, lambda _: None)
        assert held.room == {}


@pytest.mark.parametrize(
    ("expected", "times", "there"), [(4096, 1, 0), (100, 1, 0), (100, 1, 8 * MIB), (5 * MIB, 2, 0)]
)
def test_room_on_the_host_that_is_expected_is_used_where_it_fits(expected: int, times: int, there: int) -> None:
    """`there`: bytes of a free segment, which has more than is asked for."""
    held, asked = device(), list[int]()
    with holding(held) as copy:
        copy.arena.give_back(copy.arena.take_slots(copy.owner, bool(there), there))
        promise = copy.arena.promise
        copy.arena.promise = lambda owner, nbytes: asked.append(nbytes) or promise(owner, nbytes)  # type: ignore
        aside.expect(copy, expected)
        aside.expect(copy, expected)
        set_aside(copy, [(2, 0, 4096, False)])
        assert copy_on(copy, LONG, lambda _: None).bytes == 4096
        assert (len(asked), on_the_host(copy, 4096)) == (times, held.holds(2))
        copy.give_up()
        aside.expect(copy, expected)
        assert copy.segments is None


def test_a_save_that_is_expected_without_room_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(device()) as copy:
        monkeypatch.setattr(copy.arena, "promise", fails(NoRoom("host", missing=1)))
        aside.expect(copy, 100)
        assert copy.segments is None


class Wanted(Device):
    """Another program needs the room while the copy is made."""

    copy: HostCopy | None = None

    def move(self, moves: Sequence[Move]) -> Any:
        super().move(moves)
        return SimpleNamespace(wait=self._wait, done=lambda: 0)

    def _wait(self, _timeout: float) -> float:
        copy, self.copy = self.copy, None
        if copy:
            give_up_snapshot(copy, time.monotonic())
        return 0.0


def test_a_copy_of_which_the_room_goes_while_it_is_made_is_refused_not_lost() -> None:
    held = Wanted(spare=4 * MIB)
    held.put(1, bytes(100))
    with holding(held) as copy:
        held.copy = copy
        with pytest.raises(NoRoom, match="another program"):
            set_aside(copy, [(1, 0, 100, False)])
        assert held.room == {}


class Still(Device):
    """It copies nothing within itself."""

    move = None  # type: ignore[assignment]


def test_a_device_that_copies_nothing_within_itself_saves_only_in_place() -> None:
    held = Still(spare=4 * MIB)
    held.put(1, bytes(100))
    with holding(held) as copy:
        with pytest.raises(UnsupportedState, match="copies nothing"):
            set_aside(copy, [(1, 0, 99, False), (1, 0, 1, True)], fills=True)
        assert set_aside(copy, [(1, 0, 100, True)], fills=True) == 100


def test_a_copy_that_was_given_up_meanwhile_takes_nothing() -> None:
    held = device()
    with holding(held) as copy:
        copy.give_up()
        with pytest.raises(RolledBack, match="given up"):
            set_aside(copy, [(1, 0, 100, False)])
        assert (held.room, copy.segments) == ({}, None)


@pytest.mark.parametrize(("spare", "made"), [(4 * MIB, [MIB]), (MIB // 2, [])])
def test_room_is_renewed_where_the_device_has_much(
    monkeypatch: pytest.MonkeyPatch, spare: int, made: Sequence[int]
) -> None:
    monkeypatch.setattr(aside, "ROOM_BYTES", MIB)
    held, found = device(spare), list[int]()
    create = held.create
    monkeypatch.setattr(held, "create", lambda specs: found.append(specs[0].size) or create(specs))
    aside.renew_room(cast("Any", held))
    assert (found, held.room) == (made, {})


def test_a_program_that_finds_no_room_while_it_is_renewed_tries_again() -> None:
    seen = list[str]()

    @contextmanager
    def occupying(device: str) -> Iterator[None]:
        seen.append(f"occupied {device}")
        try:
            yield
        finally:
            seen.append("free")

    def renew() -> None:
        seen.append("renewed")
        raise PeerGone("the worker has ended")

    with pytest.raises(PeerGone):
        save._renew(
            cast("Any", SimpleNamespace(occupying=occupying)),
            cast("Any", SimpleNamespace(device="A", renew_room=renew)),
        )
    assert seen == ["occupied A", "renewed", "free"]


@pytest.mark.parametrize(
    ("identity", "uid", "error"), [(ME, 4711, NotOurs), (FORMER, 0, NoSuchJob), (None, 0, NoSuchJob)]
)
def test_only_a_process_of_the_callers_own_job_saves_its_memory(
    identity: ProcessIdentity | None, uid: int, error: type[GcrError]
) -> None:
    """The job is another user's; or the pid was another process's before; or the process has ended."""
    job = Job("llm", "t", World("nvidia"), owner=4712)
    job.processes[ME.pid] = Process("llm", ME)
    node = cast("Any", SimpleNamespace(jobs=SimpleNamespace(all=lambda: [job])))
    asked = Asked(lambda _event: None, Event(), caller=Caller(uid=uid))
    with pytest.raises(error):
        run(node, SaveSpansRequest(), asked, Program(identity, SimpleQueue()))


def table(*places: tuple[int, str, int, int, int]) -> AllocationTable:
    """Returns a table of mappings: id, device, address, offset in the handle, bytes."""
    found: dict[int, Allocation] = {}
    for id, where, address, offset, size in places:
        known = found[id].mappings if id in found else ()
        mapping = MappingRecord(id, address, offset, size, 1, 1)
        found[id] = Allocation(HandleSpec(id, 1 << 20), where, (*known, mapping))
    return AllocationTable(0, {0: "A", 1: "B"}, found)


TABLE = table((1, "A", 1000, 0, 100), (2, "A", 1100, 50, 100), (3, "B", 2000, 0, 100), (2, "A", 5000, 0, 10))


def test_a_span_over_several_handles_is_cut_at_their_borders() -> None:
    found = parts_of(TABLE, [(1090, 20), (5000, 10), (1000, 1)], in_place=[0, 2])
    assert (found.device, found.pieces) == (
        "A",
        [(1, 90, 10, True), (2, 50, 10, True), (2, 0, 10, False), (1, 0, 1, True)],
    )


@pytest.mark.parametrize("span", [(999, 2), (1199, 2), (0, 1), (1500, 1), (5005, 100), (1 << 63, 1 << 60)])
def test_a_span_outside_the_memory_of_the_process_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedState, match="a span lies in no device memory"):
        parts_of(TABLE, [(1000, 1), span])
    with pytest.raises(UnsupportedState, match="2 devices"):
        parts_of(TABLE, [(1000, 1), (2000, 1)])
