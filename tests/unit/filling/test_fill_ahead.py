"""The device of a stopped job, which is filled while its processes are made."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from filled import Target

from gcr.control import ControlMeans
from gcr.daemon.commands import fill_ahead
from gcr.daemon.images.opened import SEVERAL_FROM
from gcr.protocol.operations.daemon import ParkedIn


def begun(target: Target) -> tuple[Any, Any]:
    """Begins to fill the device for a stopped job, and returns node and job."""
    target.worker.device = "GPU-1"
    node, ends = target.node, SimpleNamespace(finished=False)
    job = SimpleNamespace(name="llm", token="t", owner=os.getuid(), world=None, ends=ends)
    present = [SimpleNamespace(uuid=uuid) for uuid in target.present]
    node.control = lambda _world: SimpleNamespace(means=ControlMeans.DRIVER, devices=lambda: present)
    node.jobs = SimpleNamespace(by_name={"llm": job})
    node.worker = lambda _world, _device: target.worker
    image = ParkedIn(str(target.store.path), target.image())
    fill_ahead.begin(node, cast("Any", job), image, SEVERAL_FROM)
    if known := node.residents.arriving.known("llm"):
        known.await_fill(lambda: None)
    return node, job


def test_a_stopped_jobs_device_is_filled_for_its_restore_alone(target: Target) -> None:
    node, _ = begun(target)
    node.residents.arriving.settle()
    held = target.job.holds(1)
    assert target.restored("round-1") == {1: held}


@pytest.mark.parametrize("way", ["its supervisor has left", "its program has ended", "it came too late"])
def test_what_no_restore_takes_goes(target: Target, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "it came too late":
        monkeypatch.setattr(fill_ahead, "WANTED_S", 0.0)
    node, job = begun(target)
    assert not target.nothing_is_left()
    if way == "its supervisor has left":
        node.jobs.by_name.clear()
    job.ends.finished = way == "its program has ended"
    node.residents.arriving.settle()
    assert target.nothing_is_left() and node.residents.arriving.known("llm") is None


@pytest.mark.parametrize("present", [["GPU-7"], []])
def test_no_other_device_is_filled_in_the_place_of_one_that_is_not_there(target: Target, present: list[str]) -> None:
    target.present = present
    begun(target)
    assert target.nothing_is_left()


def test_without_a_thread_for_the_fill_the_restore_waits_for_none(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(fill_ahead, "on_thread", fails)
    node, _ = begun(target)
    assert target.nothing_is_left() and not node.residents.arriving.known("llm").lock.locked()


def test_a_migration_fills_the_device_alone(target: Target) -> None:
    target.fill(target.image())
    before = target.node.residents.arriving.known("llm")
    begun(target)
    assert target.node.residents.arriving.known("llm") is before
