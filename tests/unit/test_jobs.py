"""Jobs that a former daemon had: how long a new one waits for them."""

import time

import pytest

from gcr.daemon import jobs as module
from gcr.daemon.jobs import Job, Jobs
from gcr.engine.node import World
from gcr.errors import NoSuchJob
from gcr.processes import ProcessIdentity

STOPPED = ProcessIdentity(7, 8)


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.setattr(module, "AWAIT_S", 0.6)
    monkeypatch.setattr(module, "RETURN_S", 0.2)
    return Jobs()


def refused_at(jobs, target):
    """Returns the age of the daemon, in seconds, at which it refuses the target: it waits from its own begin on."""
    with pytest.raises(NoSuchJob):
        jobs.find(target)
    return time.monotonic() - jobs.began


def test_processes_that_come_are_waited_for_no_longer(jobs):
    awaited = [[STOPPED], [STOPPED], []]
    jobs.awaited = lambda: awaited.pop(0)
    assert not jobs.await_all() and not awaited


def test_one_that_is_stopped_is_waited_for_once_and_told(jobs):
    asked = []
    jobs.awaited = lambda: asked.append(STOPPED) or [STOPPED]
    assert [*jobs.await_all()] == [STOPPED] and time.monotonic() - jobs.began >= module.AWAIT_S
    asked.clear()
    assert [*jobs.await_all()] == [STOPPED] == asked


@pytest.mark.parametrize(("target", "least"), [("llm", 0.6), (7, 0.6), (9, 0.0)])
def test_a_name_may_be_that_of_a_job_that_comes_yet(jobs, target, least):
    jobs.awaited = lambda: [STOPPED]
    assert refused_at(jobs, target) >= least


def test_a_job_that_comes_meanwhile_is_found(jobs):
    job = Job("llm", "t", World("nvidia"))

    def awaited():
        jobs.by_name["llm"] = job
        return [STOPPED]

    jobs.awaited = awaited
    assert jobs.find("llm") is job


def test_a_pid_that_is_not_awaited_is_refused_at_once(jobs, monkeypatch):
    monkeypatch.setattr(module, "AWAIT_S", 30.0)
    monkeypatch.setattr(module, "RETURN_S", 30.0)
    assert refused_at(jobs, 9) < 20
