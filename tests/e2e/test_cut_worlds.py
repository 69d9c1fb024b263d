"""A node's part of a cut in every world: it waits at each barrier, whichever way its memory leaves."""

from collections.abc import Mapping
from typing import Any

import pytest
from cut_nodes import Watched
from machine import Machine
from test_first_call import began, loaded
from worlds import AMD, everywhere

from gcr.api.barriers import Barrier
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cluster.calls import Over, Result
from gcr.cluster.running import new_cut


def cut(machine: Machine, **more: Any) -> tuple[Result, Mapping[Barrier, float]]:
    """Returns the result of a checkpoint over this one node, and the barriers that it came to."""
    link = Watched(machine.socket)
    request = CheckpointRequest(target="llm", cut=new_cut(), timeout=30.0, **more)
    return Over({"one": link}, 10.0).checkpoint(request), link.came


def back(machine: Machine) -> tuple[Result, Mapping[Barrier, float]]:
    link = Watched(machine.socket)
    return Over({"one": link}, 10.0).restore(RestoreRequest(target="llm", cut=new_cut(), timeout=30.0)), link.came


@everywhere()
def test_a_part_waits_at_each_barrier_and_comes_back_unchanged(machine: Machine):
    job = machine.told("llm", machine.where.handles(3))
    before = job.ask()
    done, came = cut(machine, **machine.where.how)
    assert (done.error, [*came]) == (None, [Barrier.ADMITTED, Barrier.STILL]), done
    row = machine.job("llm")
    assert row and (row["state"], row["cut"]) == (machine.where.suspended, {"id": done.report.cut, "barrier": None})
    again, came = back(machine)
    assert (again.error, [*came]) == (None, [Barrier.READY]), again
    assert job.ask() == before
    assert (machine.job("llm") or {})["cut"] is None


def test_a_job_without_a_driver_call_is_a_part_of_a_cut(machine: Machine):
    job = loaded(machine)
    done, came = cut(machine)
    assert (done.error, [*came]) == (None, [Barrier.ADMITTED, Barrier.STILL]), done
    row = machine.job("llm")
    assert row and row["cut"] == {"id": done.report.cut, "barrier": None}
    job.tell("begin")
    assert job.silent()
    again, came = back(machine)
    assert (again.error, [*came]) == (None, [Barrier.READY]), again
    began(job)


@pytest.mark.parametrize("machine", [AMD], indirect=True, ids=["amd"])
def test_processes_that_would_end_cannot_wait(machine: Machine, criu: None):
    job = machine.told("llm", machine.where.handles(3))
    before = job.ask()
    refused, came = cut(machine)
    assert refused.error
    assert (refused.error.code, refused.error.exit, [*came]) == ("cannot_hold", 3, []), refused
    assert job.ask() == before
