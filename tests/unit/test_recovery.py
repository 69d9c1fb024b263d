"""Recovery goes on until nothing is left to be done: giving up would leave a program stopped for ever."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon import recovery as module
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.recovery import Recovery
from gcr.engine.node import World
from gcr.errors import DeadlinePassed
from gcr.job.states import State


@pytest.fixture
def job() -> Job:
    made = Job("llm", "token", World("nvidia"))
    made.processes[1] = cast("Any", SimpleNamespace(state=State.QUIESCED))
    return made


@pytest.fixture
def jobs(job: Job, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr(module, "AT_ONCE", (0.0,) * 2)
    monkeypatch.setattr(module, "LATER", (0.0,) * 2)
    monkeypatch.setattr(module, "FOR_GOOD", 0.01)
    made = Jobs()
    made.add(job)
    return made


class Failing(Recovery):
    """`failures`: so many times at first."""

    def __init__(self, jobs: Jobs, failures: int, error: Exception) -> None:
        super().__init__(cast("Any", None), jobs)
        self.failures, self.error, self.calls, self.over = failures, error, 0, threading.Event()

    def of(self, job: Job) -> dict[str, Any]:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        job.processes[1].state = State.RUNNING
        self.over.set()
        return {}


@pytest.mark.parametrize("error", [DeadlinePassed("it is stopped"), OSError(28, "No space left on device")])
def test_it_goes_on_as_long_as_it_fails_and_commands_do_not_wait_for_that(
    jobs: Jobs, job: Job, error: Exception
) -> None:
    recovery = Failing(jobs, 10, error)
    recovery.begin_if_uneven(job)
    assert job.turn.settled.wait(10), "nobody may ever change the job again"
    assert recovery.over.wait(10), f"given up after {recovery.calls}"
    assert recovery.calls == 11


def test_of_a_job_that_is_gone_nothing_is_asked_any_more(jobs: Jobs, job: Job) -> None:
    recovery = Failing(jobs, 1 << 30, DeadlinePassed("it is stopped"))
    recovery.begin_if_uneven(job)
    assert job.turn.settled.wait(10)
    jobs.remove(job)
    for thread in threading.enumerate():
        if thread.name == "gcr-recover":
            thread.join(10)
            assert not thread.is_alive()
