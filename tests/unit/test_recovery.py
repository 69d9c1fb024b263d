"""Recovery goes on until nothing is left to be done: giving up would leave a program stopped for ever."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.api.answers import Recovered, RecoveredJob
from gcr.config import Config
from gcr.daemon import recovery as module
from gcr.daemon.jobs import Job, Jobs, Program
from gcr.daemon.recovery import Recovery
from gcr.engine import rolling_back
from gcr.engine.node import World
from gcr.engine.turns import Turns
from gcr.errors import DeadlinePassed, NoRoom
from gcr.job.states import State
from gcr.job.suspension import Suspension
from gcr.peers.shares import NOTHING
from gcr.processes import ProcessIdentity
from gcr.protocol.wire import AgentPhase


@pytest.fixture
def job() -> Job:
    made = Job("llm", "token", World("nvidia"))
    made.processes[1] = cast("Any", SimpleNamespace(state=State.QUIESCED, waits=False, identity=ProcessIdentity(1, 1)))
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
    assert job.turn.settled.wait(10), "no command may ever change the job again"
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


class Recorder:
    """Notes the calls of any method."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **_: self._said.append(" ".join([name, *map(str, arguments)]))


def test_a_checkpoint_that_is_taken_back_late_leaves_no_copy_in_a_worker_that_lives() -> None:
    """Its own undo kept the copy, since the process had its memory with gcr alone. No later copy takes its place."""
    said: list[str] = []
    any_of_it = Recorder(said)
    status = SimpleNamespace(phase=AgentPhase.QUIESCED, flags=0, handles=1)
    process = SimpleNamespace(look=lambda: SimpleNamespace(status=status), settle=any_of_it.settle, agent=any_of_it)
    process.suspension = Suspension()
    target = SimpleNamespace(process=process, control_state=any_of_it, imports=any_of_it, resume=any_of_it.resume)
    target.pid, target.copy_name, target.world, target.keeper = 7, "copy 9", None, lambda: any_of_it
    target.bytes_by_device = target.devices = {"GPU-1": 1, "GPU-2": 1}
    warm = {"GPU-1": SimpleNamespace(copies=any_of_it)}
    node = SimpleNamespace(config=Config(), turns=Turns(), warm_worker=lambda _world, device: warm.get(device))
    target.read_shares, target.shares, target.phase = any_of_it.read_shares, NOTHING, lambda: AgentPhase.QUIESCED
    target.node = node
    rolling_back.roll_back([cast("Any", target)], [], cast("Any", node))
    assert said.index("resume") < said.index("forget_copy copy 9")
    assert said.count("forget_copy copy 9") == 1


class Held(Recovery):
    """An attempt that waits, and then fails `failures` times."""

    def __init__(self, jobs: Jobs, failures: int) -> None:
        super().__init__(cast("Any", None), jobs)
        self.failures, self.calls, self.begun, self.goes_on = failures, 0, threading.Event(), threading.Event()

    def _attempt(self, job: Job) -> RecoveredJob:
        self.calls += 1
        self.begun.set()
        with self._jobs.changing(job, "recover"):
            assert self.goes_on.wait(10)
        if self.calls <= self.failures:
            raise DeadlinePassed(f"attempt {self.calls}")
        job.processes[1].state = State.RUNNING
        job.results.recovered = RecoveredJob(job=job.name, was="quiesced", now="running", action=f"of {self.calls}")
        return job.results.recovered


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_command_waits_for_an_attempt_that_is_under_way_and_makes_its_own_where_that_failed(
    jobs: Jobs, job: Job, failures: int
) -> None:
    """Room that the user has just made counts for the answer."""
    recovery = Held(jobs, failures)
    with ThreadPoolExecutor(2) as pool:
        daemons = pool.submit(recovery.tried, job)
        assert recovery.begun.wait(10)
        asked = pool.submit(recovery.of_all)
        with pytest.raises(TimeoutError):
            asked.result(0.05)
        recovery.goes_on.set()
        assert daemons.result(10) is (failures == 0)
        answer = asked.result(10)
        told = [(each.was, each.action) for each in answer.jobs]
        assert told == [("quiesced", f"of {failures + 1}")] * (failures < 2)
        assert [each.error["message"] for each in answer.failed] == ["attempt 2"] * (failures == 2)
    assert recovery.calls == (1 if failures == 0 else 2)


class Each(Recovery):
    """An attempt for each job, which fails for those that have an error."""

    def __init__(self, jobs: Jobs, errors: Mapping[str, Exception]) -> None:
        super().__init__(cast("Any", None), jobs)
        self.errors, self.tried_jobs = errors, list[str]()

    def _attempt(self, job: Job) -> RecoveredJob:
        self.tried_jobs.append(job.name)
        if job.name in self.errors:
            raise self.errors[job.name]
        return RecoveredJob(job=job.name, was="frozen", now="running", action="rolled back")


def test_a_job_that_fails_keeps_no_other_from_being_recovered() -> None:
    jobs, names = Jobs(), ["first", "full", "last", "short"]
    for number, name in enumerate(names):
        jobs.add(Job(name, name, World("nvidia"), program=Program(started=number)))
    short = NoRoom("no room", missing=7, state=State.FROZEN)
    recovery = Each(jobs, {"first": DeadlinePassed("it is stopped"), "full": OSError(28, "full"), "short": short})
    answer = recovery.of_all()
    assert recovery.tried_jobs == names
    assert [each.job for each in answer.jobs] == ["last"]
    told = {each.job: (each.error["code"], each.error.get("missing")) for each in answer.failed}
    assert told == {"first": ("deadline_passed", None), "full": ("internal", None), "short": ("no_room", 7)}
    assert Recovered.from_json(answer.to_json()) == answer
