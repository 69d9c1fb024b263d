"""A report tells what a process had when its books were closed, not when it was last looked at."""

from collections.abc import Mapping
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.api.listings import ArenaReady
from gcr.daemon import readiness, reports
from gcr.daemon.jobs import Job
from gcr.devices import uuid_text
from gcr.drain import HandleSpec
from gcr.engine.node import World
from gcr.errors import DeadlinePassed
from gcr.job import process as process_module
from gcr.job.process import Process
from gcr.job.states import State
from gcr.job.tracking import Allocation, AllocationTable
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import DeviceRecord, StatusRecord, StatusReply

MIB = 1 << 20
UUIDS = [bytes([number]) * 16 for number in (1, 2)]
ONE, OTHER = map(uuid_text, UUIDS)


def process(handles: Mapping[int, int]) -> Process:
    """Returns a process after a look at it: bytes of one handle, by ordinal."""
    made = Process("llm", ProcessIdentity(7, 1))
    devices = tuple(DeviceRecord(UUIDS[n], n, 1, covered_bytes=size) for n, size in handles.items())
    made.seen.status = StatusReply(StatusRecord(), devices)
    made.seen.uuids = dict(enumerate((ONE, OTHER)))
    return made


def table(*held: tuple[str, int]) -> AllocationTable:
    """Returns a table of allocations; each has a device and bytes."""
    every = {id: Allocation(HandleSpec(id, size), device, ()) for id, (device, size) in enumerate(held, start=1)}
    return AllocationTable(1, {0: ONE, 1: OTHER}, every)


def rows(seen: Mapping[int, int], *held: tuple[str, int]) -> list[tuple[Any, ...]]:
    found = reports.of_table(process(seen), table(*held))
    assert all(row.covered_bytes == row.bytes for row in found)
    return [(row.device, row.bytes, row.handles) for row in found]


def test_rows_have_what_came_after_the_last_look() -> None:
    assert rows({0: 2 * MIB}, (ONE, 2 * MIB), (ONE, 4 * MIB)) == [(ONE, 6 * MIB, 2)]


def test_a_device_that_came_after_it_has_a_row() -> None:
    assert rows({0: 2 * MIB}, (ONE, 2 * MIB), (OTHER, 4 * MIB)) == [(ONE, 2 * MIB, 1), (OTHER, 4 * MIB, 1)]
    assert rows({}, (OTHER, 4 * MIB)) == [(OTHER, 4 * MIB, 1)]


def test_what_was_freed_after_it_is_not_in_them() -> None:
    assert rows({0: 2 * MIB, 1: 4 * MIB}, (OTHER, 4 * MIB)) == [(ONE, 0, 0), (OTHER, 4 * MIB, 1)]


def test_the_bytes_of_a_report_are_those_of_its_processes() -> None:
    job, other = Job("llm", "", World("nvidia")), Process("llm", ProcessIdentity(8, 1))
    job.processes = {7: process({0: 2 * MIB}), 8: other}
    targets = [SimpleNamespace(pid=7, books=SimpleNamespace(table=table((ONE, 2 * MIB), (ONE, 4 * MIB))))]
    found = reports.at_the_cut(job, cast("Any", SimpleNamespace(targets=targets)))
    assert [(row.pid, row.covered_bytes) for row in found] == [(7, 6 * MIB), (8, 0)]


def test_a_device_that_is_just_seen_has_its_name_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may make rows, for `ps`, at any instant of a look."""
    looked_at, seen = process({0: 2 * MIB}), []
    status = StatusReply(StatusRecord(), tuple(DeviceRecord(UUIDS[n], n, 1, covered_bytes=MIB) for n in (0, 1)))
    looked_at.seen.uuids = {0: ONE}
    looked_at.peer = cast("Any", SimpleNamespace(status=lambda: status, channel=SimpleNamespace(closed=Event())))

    def named(uuid: bytes) -> str:
        seen.append([row.device for row in reports.rows(looked_at)])
        return uuid_text(uuid)

    monkeypatch.setattr(process_module, "uuid_text", named)
    looked_at.look()
    assert seen == [[ONE], [ONE]]
    assert [row.device for row in reports.rows(looked_at)] == [ONE, OTHER]


def test_how_far_a_job_is_from_a_warm_checkpoint() -> None:
    job = Job("llm", "", World("nvidia"))
    assert readiness.arena_of(job, {}) is None
    job.processes = {7: process({0: 6 * MIB, 1: 4 * MIB}), 8: Process("llm", ProcessIdentity(8, 1))}
    ready = {(ONE, "7.1"): 8 * MIB, (OTHER, "7.1"): 1 * MIB, (ONE, "9.1"): 64 * MIB}
    assert readiness.arena_of(job, ready) == ArenaReady(wanted_bytes=10 * MIB, ready_bytes=7 * MIB)
    job.processes[7].settle(State.SUSPENDED)
    assert readiness.arena_of(job, ready) is None


def test_a_worker_that_does_not_answer_has_nothing_ready() -> None:
    def silent() -> dict[str, int]:
        raise DeadlinePassed("no reply")

    workers = [SimpleNamespace(device=ONE, prepared=lambda: {"7.1": 5}), SimpleNamespace(device=OTHER, prepared=silent)]
    assert readiness.ready_bytes(cast("Any", workers)) == {(ONE, "7.1"): 5}
