"""A job suspended and restored by a process of its own."""

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gcr.errors import NoSuchJob, UnsupportedState, WrongState
from gcr.library import ownjob


class FakeJob:
    """`says`: what becomes of each command. The job is where the last command that was done led."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *says: Callable[[], object]) -> None:
        self.state, self.says, self.how, self.name = "running", [*says], list[object](), "llm"
        monkeypatch.setattr(ownjob, "jobs", lambda: [self.row()])
        monkeypatch.setattr(ownjob, "attach", lambda _name: self)
        monkeypatch.setattr(ownjob, "POLL_S", 0.0)

    def row(self) -> SimpleNamespace:
        return SimpleNamespace(job="llm", pid=1, state=self.state, processes=[SimpleNamespace(pid=os.getpid())])

    def checkpoint(self, **how: object) -> None:
        self.how.append(how)
        self.says.pop(0)()
        self.state = "suspended"

    def restore(self) -> None:
        self.how.append("restore")
        self.state = "running"


def failing(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def test_a_job_whose_memory_cannot_stay_is_suspended_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJob(monkeypatch, failing(UnsupportedState("shared")), lambda: None)
    ownjob.suspend_own()
    ownjob.suspend_own()  # it is there already
    assert fake.how == [{"resident": True}, {}]
    ownjob.restore_own()
    ownjob.restore_own()
    assert fake.how[2:] == ["restore"]


def test_another_command_has_its_turn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJob(monkeypatch, *[failing(WrongState("busy"))] * 2, lambda: None)
    ownjob.suspend_own()
    assert (len(fake.how), fake.state) == (3, "suspended")
    fake.state, fake.says = "running", [failing(WrongState("stuck"))] * 99
    monkeypatch.setattr(ownjob, "TURN_S", 0.0)
    with pytest.raises(WrongState):
        ownjob.suspend_own()


def test_a_process_of_no_job_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownjob, "jobs", tuple)
    with pytest.raises(NoSuchJob, match="belongs to no job"):
        ownjob.suspend_own()
