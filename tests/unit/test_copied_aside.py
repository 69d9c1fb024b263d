"""Parts of memory that are copied aside: where they lie in handles, and the worker's copy of them."""

import ctypes
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.api.requests import SaveSpansRequest
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.save import Program, run
from gcr.daemon.jobs import Job
from gcr.daemon.permission import Caller
from gcr.drain import HandleSpec, Move
from gcr.engine.aside import parts_of
from gcr.engine.node import World
from gcr.errors import GcrError, NoRoom, NoSuchJob, NotOurs, RolledBack, UnsupportedState
from gcr.imageerrors import ImageFailed
from gcr.job.process import Process
from gcr.job.tracking import Allocation, AllocationTable
from gcr.processes import ProcessIdentity
from gcr.protocol.wire import MappingRecord
from gcr.worker.aside import Piece, copy_aside, make_room
from gcr.worker.hostcopy import HostCopy
from gcr.worker.taking import copy_on, give_up_snapshot

sys.path.insert(0, str(Path(__file__).parent))

from host_device import LONG, Device, fails, holding

MIB = 1 << 20
ME, FORMER = ProcessIdentity(77, 2), ProcessIdentity(77, 1)
SIZES = (100, 4096, 70_000)


def device() -> Device:
    made = Device(spare=4 * MIB)
    for id, size in enumerate(SIZES, 1):
        made.put(id, random.Random(id).randbytes(size))
    return made


def on_the_host(copy: HostCopy, nbytes: int) -> bytes:
    assert copy.segments
    return b"".join(ctypes.string_at(part.address, part.size) for part in copy.segments.parts)[:nbytes]


pieces_ = st.lists(
    st.integers(1, len(SIZES)).flatmap(
        lambda id: st.tuples(st.just(id), st.integers(0, SIZES[id - 1] - 1), st.integers(1, SIZES[id - 1])).map(
            lambda piece: (piece[0], piece[1], min(piece[2], SIZES[piece[0] - 1] - piece[1]))
        )
    ),
    min_size=1,
    max_size=6,
)


@given(pieces_)
def test_the_bytes_are_those_of_the_call_and_the_room_goes_once_they_are_read(pieces: Sequence[Piece]) -> None:
    held = device()
    wanted = b"".join(held.holds(id)[at : at + size] for id, at, size in pieces)
    with holding(held) as copy:
        make_room(copy, len(wanted))
        copy_aside(copy, pieces, time.monotonic() + LONG)
        assert held.moved == 0
        for id, size in enumerate(SIZES, 1):
            held.memory_of[id].raw = bytes(size)  # the program goes on
        assert copy_on(copy, LONG, lambda _: None).bytes == len(wanted)
        assert on_the_host(copy, len(wanted)) == wanted
        assert held.room == {}
        copy.give_up()


@pytest.mark.parametrize("piece", [(9, 0, 1), (1, 0, 101), (1, 99, 2), (1, -1, 1), (1, 0, 0)])
def test_pieces_of_no_held_memory_are_refused(piece: Piece) -> None:
    held = device()
    with holding(held) as copy:
        make_room(copy, 200)
        with pytest.raises(RolledBack, match="not held here"):
            copy_aside(copy, [(1, 0, 100), piece], time.monotonic() + LONG)
        copy.give_up()
        assert held.room == {}


def test_where_device_or_host_have_no_room_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = device()
    with holding(held) as copy:
        with pytest.raises(NoRoom) as caught:
            make_room(copy, 5 * MIB)
        assert caught.value.missing
        monkeypatch.setattr(copy.arena, "promise", fails(NoRoom("host", missing=1)))
        with pytest.raises(NoRoom, match="host"):
            make_room(copy, 100)
        assert (held.room, copy.snapshot, copy.segments) == ({}, None, None)


def test_room_that_another_program_needs_is_given_back_before_and_after_the_copy() -> None:
    held = device()
    with holding(held) as copy:
        make_room(copy, 100)
        give_up_snapshot(copy, time.monotonic())
        with pytest.raises(NoRoom, match="another program"):
            copy_aside(copy, [(1, 0, 100)], time.monotonic() + LONG)
        copy.give_up()
    with holding(held) as copy:
        make_room(copy, 100)
        copy_aside(copy, [(1, 0, 100)], time.monotonic() + LONG)
        give_up_snapshot(copy, time.monotonic())
        with pytest.raises(ImageFailed, match="needed the room"):
            copy_on(copy, LONG, lambda _: None)
        assert held.room == {}


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
        make_room(copy, 100)
        held.copy = copy
        with pytest.raises(NoRoom, match="another program"):
            copy_aside(copy, [(1, 0, 100)], time.monotonic() + LONG)
        assert held.room == {}


class Still(Device):
    """It copies nothing within itself."""

    move = None  # type: ignore[assignment]


def test_a_device_that_copies_nothing_within_itself_saves_nothing() -> None:
    with holding(Still(spare=4 * MIB)) as copy, pytest.raises(UnsupportedState, match="copies nothing"):
        make_room(copy, 100)


def test_a_copy_that_was_given_up_meanwhile_takes_nothing() -> None:
    held = device()
    with holding(held) as copy:
        copy.give_up()
        with pytest.raises(RolledBack, match="given up"):
            make_room(copy, 100)
        assert (held.room, copy.segments) == ({}, None)


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
        run(node, SaveSpansRequest(spans=((4096, 1),)), asked, Program(identity, Event()))


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
    found = parts_of(TABLE, [(1090, 20), (5000, 10), (1000, 1)])
    assert (found.device, found.pieces) == ("A", [(1, 90, 10), (2, 50, 10), (2, 0, 10), (1, 0, 1)])


@pytest.mark.parametrize("span", [(999, 2), (1199, 2), (0, 1), (1500, 1), (5005, 100), (1 << 63, 1 << 60)])
def test_a_span_outside_the_memory_of_the_process_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedState, match="a span lies in no device memory"):
        parts_of(TABLE, [(1000, 1), span])
    with pytest.raises(UnsupportedState, match="2 devices"):
        parts_of(TABLE, [(1000, 1), (2000, 1)])
