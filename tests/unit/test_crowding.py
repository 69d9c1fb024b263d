"""A restore that finds no room names the holders of the memory and a way to make room."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gcr.backend import Device
from gcr.daemon.crowding import explained, naming_holders
from gcr.daemon.jobs import Job, Jobs, Program
from gcr.engine.node import World
from gcr.errors import DeadlinePassed, NoRoom
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity
from gcr.protocol.jsonbody import error_from_json, error_to_json

GIB = 1 << 30
DEVICES = [Device(f"GPU-{n}", "H200", 8 * GIB, used * GIB) for n, used in enumerate((8, 8, 1))]
SHORT = NoRoom("the device has 0 B free", missing=2 * GIB, device="GPU-0", state="suspended")
WORKER, STRANGER = 70, 4194304 + 9


class Fleet:
    def __init__(self, held: dict[int, int] | Exception, devices: list[Device] = DEVICES) -> None:
        self.held, self.present = held, devices

    def living_workers(self) -> list[Any]:
        return [SimpleNamespace(pid=WORKER)]

    def control(self, world: World) -> "Fleet":
        return self

    def devices(self) -> list[Device]:
        return self.present

    def holders(self, device: str) -> dict[int, int]:
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


def jobs_of(**sizes: int) -> tuple[Job, Jobs]:
    """`llm`, which wants to come back to device 0, and jobs that run there, by their GiB."""
    jobs, world = Jobs(), World("nvidia")
    for pid, (name, size) in enumerate({"llm": 3, **sizes}.items(), 1):
        job = Job(name, "t", world, program=Program(pid=pid))
        state = State.SUSPENDED if name == "llm" else State.RUNNING
        process = Process(name, ProcessIdentity(pid, 1), state)
        process.suspension.bytes_by_device = {"GPU-0": size * GIB}
        job.processes[pid] = process
        jobs.add(job)
    return jobs.find("llm"), jobs


def said(held: dict[int, int], devices: list[Device] = DEVICES, **sizes: int) -> NoRoom:
    job, jobs = jobs_of(**sizes)
    return explained(SHORT, job, jobs, Fleet(held, devices))  # type: ignore[arg-type]


def test_jobs_are_named_by_gcr_s_books_and_others_by_the_device() -> None:
    found = said({2: GIB, STRANGER: 2 * GIB, WORKER: GIB, 1: 1}, bb=4, small=1)
    assert found.message == (
        "2.0 GiB short on nvidia:0, which has 0 B of 8.0 GiB free; "
        f"there are: job bb 4.0 GiB, job small 1.0 GiB, process {STRANGER} 2.0 GiB"
    )
    assert (found.missing, found.device, found.state) == (2 * GIB, "GPU-0", "suspended")
    assert found.hint == "gcr checkpoint bb, or gcr swap bb llm, or gcr restore llm --device 0=2"


def test_the_smallest_job_whose_leaving_is_enough_is_named_else_the_largest() -> None:
    full = [replace(device, used_bytes=8 * GIB) for device in DEVICES]
    assert said({}, full, a=6, b=3, c=1).hint == "gcr checkpoint b, or gcr swap b llm"
    assert said({}, full, a=1, b=1).hint in ("gcr checkpoint a", "gcr checkpoint b")


def test_jobs_of_another_user_are_not_named() -> None:
    job, jobs = jobs_of(bb=4)
    jobs.find("bb").owner = job.owner + 1
    found = explained(SHORT, job, jobs, Fleet({2: 4 * GIB}))  # type: ignore[arg-type]
    assert "bb" not in found.message + found.hint
    assert "process 2" in found.message


def test_without_jobs_there_and_without_another_device_it_is_for_the_user_to_end_something() -> None:
    other = [replace(DEVICES[0]), replace(DEVICES[2], name="H100")]
    found = said({STRANGER: 8 * GIB}, other)
    assert f"there is: process {STRANGER} 8.0 GiB" in found.message
    assert found.hint.startswith("gcr devices")


def test_a_helper_that_does_not_answer_costs_the_explanation_only() -> None:
    job, jobs = jobs_of()
    with pytest.raises(NoRoom) as caught, naming_holders(job, jobs, Fleet(DeadlinePassed("silent"))):  # type: ignore[arg-type]
        raise SHORT
    assert caught.value is SHORT


def test_which_device_crosses_a_socket() -> None:
    again = error_from_json(error_to_json(SHORT))
    assert isinstance(again, NoRoom)
    assert (again.device, again.missing) == ("GPU-0", 2 * GIB)
    host = error_from_json(error_to_json(NoRoom("host", missing=None)))
    assert isinstance(host, NoRoom)
    assert (host.device, host.missing) == (None, None)
