"""A node's part of a cut in every world: it waits at each barrier, whichever way its memory leaves."""

import secrets
from collections.abc import Mapping
from typing import Any

import pytest
from cut_nodes import Watched
from filed import Filed
from little_room import large, nothing_is_left
from machine import Machine
from stored import store_of
from test_first_call import began, loaded
from worlds import AMD, NVIDIA, at, everywhere

from gcr.api.barriers import Barrier
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cluster.calls import Over, Result
from gcr.cluster.nodes import Told
from gcr.cluster.running import new_cut
from gcr.cutroot import Root, cut_name


class BesideOthers(Watched):
    """A node that comes to rest by itself, in a cut in which another one does not."""

    def _keeping(self, told: Told) -> Told:
        keep = super()._keeping(told)

        def hear(barrier: Barrier) -> None:
            keep(Barrier.APART if barrier is Barrier.STILL and not self.leads else barrier)

        return hear


def cut(machine: Machine, by: type[Watched] = Watched, **more: Any) -> tuple[Result, Mapping[Barrier, float]]:
    """Returns the result of a checkpoint over this one node, and the barriers that it came to."""
    link = by(machine.socket)
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


@everywhere()
def test_a_part_that_stands_still_is_led_for_others_and_stands_still_again(machine: Machine):
    job = machine.told("llm", machine.where.handles(3))
    before = job.ask()
    done, came = cut(machine, BesideOthers, **machine.where.how)
    assert (done.error, [*came]) == (None, [Barrier.ADMITTED, Barrier.APART, Barrier.STILL]), done
    assert back(machine)[0].error is None
    assert job.ask() == before


@pytest.mark.parametrize("by", [Watched, BesideOthers])
def test_a_job_without_a_driver_call_is_a_part_of_a_cut(machine: Machine, by: type[Watched]):
    job = loaded(machine)
    done, came = cut(machine, by)
    assert (done.error, [*came][-1]) == (None, Barrier.STILL), done
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


# ---- images ---------------------------------------------------------------------------------------------------------


def imaged(machine: Machine, **more: Any) -> tuple[Result, Mapping[Barrier, float]]:
    """The same as `cut`, with an image."""
    link, made = Watched(machine.socket), new_cut()
    place = {"image": cut_name("night", made), "store": str(store_of(machine))}
    request = CheckpointRequest(target="llm", cut=made, timeout=30.0, **{**place, **more})
    return Over({"one": link}, 10.0).checkpoint(request), link.came


def from_image(machine: Machine) -> tuple[Result, Mapping[Barrier, float]]:
    link, store = Watched(machine.socket), str(store_of(machine))

    def part_of(root: Root) -> RestoreRequest:
        return RestoreRequest(target=root.job, cut=new_cut(), timeout=30.0, image=root.name, store=store, revive=True)

    return Over({"one": link}, 10.0).restore_image("night", store, part_of), link.came


WITH_IMAGE = [Barrier.ADMITTED, Barrier.STILL, Barrier.DURABLE]


@everywhere()
def test_a_part_with_an_image_waits_until_it_is_durable_and_comes_back_from_it(machine: Machine):
    job = machine.told("llm", machine.where.handles(3))
    before = job.ask()
    done, came = imaged(machine, **machine.where.how)
    assert (done.error, [*came]) == (None, WITH_IMAGE), done
    row = machine.job("llm")
    assert row and row["state"] == machine.where.suspended
    again, came = from_image(machine)
    assert (again.error, [*came]) == (None, [Barrier.READY]), again
    assert job.ask() == before


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_a_part_that_is_stopped_waits_before_its_processes_end_and_they_come_back(
    criu: None, machine: Machine, job: Filed
):
    before = job.ask()
    machine.inject("checkpoint.went_durable fail")
    failed, came = imaged(machine, stop=True)
    assert (failed.report.outcome, [*came]) == ("taken_back", WITH_IMAGE), failed
    assert job.ask() == before
    done, came = imaged(machine, stop=True)
    assert (done.error, [*came]) == (None, WITH_IMAGE), done
    assert machine.job("llm") is None
    machine.inject("restore.ready fail")
    failed, came = from_image(machine)
    assert (failed.report.outcome, machine.job("llm")) == ("taken_back", None), failed
    again, came = from_image(machine)
    assert (again.error, [*came]) == (None, [Barrier.READY]), again
    assert job.ask() == before


def test_a_part_without_room_on_the_host_waits_before_it_is_suspended(machine: Machine):
    job, before = large(machine)
    machine.inject("checkpoint.went_durable fail")
    failed, came = imaged(machine)
    assert (failed.report.outcome, [*came]) == ("taken_back", WITH_IMAGE), failed
    assert job.ask() == before
    nothing_is_left(machine)
    done, came = imaged(machine)
    assert (done.error, [*came]) == (None, WITH_IMAGE), done
    row = machine.job("llm")
    assert row and row["only_in"] and row["cut"] == {"id": done.report.cut, "barrier": None}
    again, came = from_image(machine)
    assert (again.error, [*came]) == (None, [Barrier.READY]), again
    assert job.ask() == before


def test_an_encrypted_store_is_refused_before_anything_is_touched(machine: Machine):
    job = machine.told("llm", machine.where.handles(3))
    before, key = job.ask(), machine.folder / "key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    store = ("--store", str(store_of(machine)))
    saved = machine.gcr("checkpoint", "llm", "--image", "warm", "--leave-running", *store, "--key-file", str(key))
    assert saved.code == 0, saved.body
    refused, _came = imaged(machine)
    assert refused.error
    assert (refused.error.code, refused.report.outcome) == ("wrong_key", "refused"), refused
    assert job.ask() == before
