"""Exports that stand between the saves of a training program, and what ends them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon import standing as module
from gcr.daemon.standing import IDLE_S, REST_S, Standing
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.errors import DeadlinePassed, PeerGone, WrongState
from gcr.job.process import Process
from gcr.processes import ProcessIdentity

ME = ProcessIdentity(4711, 1)


def channel(closed: bool) -> Any:
    return SimpleNamespace(closed=SimpleNamespace(is_set=lambda: closed))


def agent(closed: bool = False) -> Any:
    return SimpleNamespace(channel=channel(closed))


@dataclass
class Exported:
    """As much of a Target as is asked here. `did`: the calls, in order. `slow`: seconds that a free takes."""

    process: Process = field(default_factory=lambda: Process("llm", ME))
    closed: bool = False
    answers: Callable[[], object] = lambda: None
    clock: list[float] = field(default_factory=lambda: [0.0])
    slow: float = 0.0
    did: list[str] = field(default_factory=list)
    pid = ME.pid

    def __post_init__(self) -> None:
        self.process.peer = agent()
        self.exports = SimpleNamespace(released=self.released)

    def workers(self) -> list[Any]:
        return [SimpleNamespace(channel=channel(self.closed))]

    def released(self, _ids: object) -> None:
        self.clock[0] += self.slow
        self.did.append("free")

    def resume(self) -> None:
        self.answers()
        self.did.append("resume")

    def forget_memory(self) -> None:
        self.did.append("forget")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("gcr.job.process.alive", lambda _identity: True)
    return now


def stands(target: Exported, exporting_s: float = 1.0) -> Standing:
    made = Standing()
    assert made.keep(cast("Target", target), exporting_s)
    return made


def raises(error: Exception) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


def test_the_next_save_finds_them() -> None:
    target = Exported()
    assert stands(target).of(target.process) is target
    assert Standing().of(target.process) is None
    assert target.did == []


def test_those_of_an_agent_or_a_worker_that_is_gone_are_ended() -> None:
    connected_again, gone, worker_died = Exported(), Exported(), Exported(closed=True)
    for target in (connected_again, gone, worker_died):
        made = stands(target)
        if target is connected_again:
            target.process.peer = agent()
        if target is gone:
            target.process.peer = agent(closed=True)
        assert made.of(target.process) is None
        assert target.did == ["resume", "forget"]
        assert not made.released(target.pid, [1])


def test_a_process_that_has_ended_leaves_none_to_the_next_one_of_its_pid() -> None:
    target = Exported()
    made = stands(target)
    newcomer = Process("llm", ProcessIdentity(ME.pid, 2))
    made.drop(newcomer)
    assert made.of(target.process) is target
    assert made.of(newcomer) is None
    assert target.did == ["resume", "forget"]
    made = stands(target)
    target.process.end()
    made.drop(target.process)
    assert not made.released(ME.pid, [1])


def test_a_program_that_waits_longer_in_frees_than_a_save_is_spared_has_none(clock: list[float]) -> None:
    target = Exported(clock=clock, slow=0.3)
    made = stands(target)
    assert [made.released(target.pid, [id]) for id in range(3)] == [True] * 3
    assert not made.is_due(target.process)
    assert made.keep(cast("Target", target), 0.001), "what the first exports took counts, and the frees since the last"
    for id in range(4):
        made.released(target.pid, [id])
    assert made.is_due(target.process)
    made.end([target.process])
    assert target.did[-2:] == ["resume", "forget"]
    assert not made.keep(cast("Target", target), 1.0)
    clock[0] += REST_S + 1
    assert made.keep(cast("Target", target), 1.0)


def test_they_end_some_time_after_the_last_save(clock: list[float]) -> None:
    target = Exported()
    made = stands(target)
    clock[0] += IDLE_S - 1
    assert not made.is_due(target.process)
    assert made.keep(cast("Target", target), 1.0)
    clock[0] += IDLE_S - 1
    assert not made.is_due(target.process)
    clock[0] += 2
    assert made.is_due(target.process)
    made.end([target.process])
    assert made.keep(cast("Target", target), 1.0), "it frees little"


def test_a_command_hears_of_a_process_that_cannot_answer_and_they_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Exported(answers=raises(DeadlinePassed("no answer")))
    made = stands(target)
    with pytest.raises(DeadlinePassed):
        made.end([target.process])
    monkeypatch.setattr("gcr.engine.admit.is_stopped", lambda _pid: True)
    with pytest.raises(WrongState, match="is stopped"):
        made.end([target.process])
    assert made.released(target.pid, [1])
    assert target.did == ["free"]


def test_an_agent_without_a_connection_has_ended_its_part() -> None:
    target = Exported(answers=raises(PeerGone("gone")))
    made = stands(target)
    made.end([target.process])
    assert target.did == ["forget"]
    assert not made.released(target.pid, [1])


def test_a_save_that_fails_leaves_none() -> None:
    target = Exported()
    made = stands(target)
    with pytest.raises(PeerGone), Transaction("llm") as undo:
        undo.push("stand", lambda: made.drop(target.process))
        raise PeerGone("the worker died")
    assert not made.released(target.pid, [1])
