"""The undo of a lock, by a driver that takes a lock after its caller has died and does not say so before."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.control import ControlMeans, ControlPhase
from gcr.engine.live import may_compute_beside
from gcr.engine.process_control import ProcessControl
from gcr.errors import DeadlinePassed, DriverError, GcrError, PeerGone
from gcr.job.suspension import Suspension


@dataclass
class Driver:
    """`answer`: what the first lock raises. One whose caller is gone is taken before the next call, and not earlier."""

    answer: GcrError | None = None
    phase_now: ControlPhase = ControlPhase.RUNNING
    waiting: bool = False
    calls: list[str] = field(default_factory=list)

    def phase(self, _pid: int) -> ControlPhase:
        return self.phase_now

    def lock(self, _pid: int, _deadline: float) -> None:
        self._begin("lock")
        answer, self.answer = self.answer, None
        if answer:
            self.waiting = not isinstance(answer, DriverError)
            raise answer
        self._step(ControlPhase.RUNNING, ControlPhase.LOCKED)

    def unlock(self, _pid: int, _deadline: float) -> None:
        self._begin("unlock")
        self._step(ControlPhase.LOCKED, ControlPhase.RUNNING)

    def checkpoint(self, _pid: int, _deadline: float) -> None:
        self._begin("checkpoint")
        self._step(ControlPhase.LOCKED, ControlPhase.CHECKPOINTED)

    def restore(self, _pid: int, _devices: Any, _deadline: float) -> None:
        self._begin("restore")
        self._step(ControlPhase.CHECKPOINTED, ControlPhase.LOCKED)

    def free_bytes(self) -> dict[str, int]:
        return {}

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        if self.waiting:
            self.waiting, self.phase_now = False, ControlPhase.LOCKED

    def _step(self, source: ControlPhase, target: ControlPhase) -> None:
        if self.phase_now is not source:
            raise DriverError("illegal state")
        self.phase_now = target


@dataclass
class Agent:
    is_frozen: bool = False

    def freeze(self, _transaction: int) -> None:
        self.is_frozen = True

    def thaw(self, _transaction: int) -> None:
        self.is_frozen = False

    def frozen(self) -> bool:
        return self.is_frozen


def control_of(driver: Driver, agent: Agent, keeps_context: bool = False) -> ProcessControl:
    process = SimpleNamespace(agent=agent, suspension=Suspension())
    session: Any = SimpleNamespace(process=process, pid=7, transaction=1, control=driver, keeps_context=keeps_context)
    return ProcessControl(session)


@pytest.mark.parametrize("lost", [PeerGone("the helper died"), DeadlinePassed("it does not answer")])
@pytest.mark.parametrize("successor", [False, True])
def test_a_lock_that_was_not_answered_is_not_taken_after_its_undo(lost: GcrError, successor: bool) -> None:
    """Nor where another daemon undoes it, which knows only that the agent is frozen."""
    driver, agent = Driver(lost), Agent()
    control = control_of(driver, agent)
    with pytest.raises(type(lost)):
        control.lock(5.0)
    (control_of(driver, agent) if successor else control).thaw(5.0, undo=True)
    assert (driver.phase_now, driver.waiting, agent.is_frozen) == (ControlPhase.RUNNING, False, False)
    assert driver.calls == ["lock", "lock", "unlock"]


def test_a_lock_that_was_refused_is_not_asked_for_again() -> None:
    driver, agent = Driver(DriverError("no")), Agent()
    control = control_of(driver, agent)
    with pytest.raises(DriverError):
        control.lock(5.0)
    control.thaw(5.0, undo=True)
    assert (driver.calls, agent.is_frozen) == (["lock"], False)


@pytest.mark.parametrize(("saved", "calls"), [(False, ["unlock"]), (True, ["checkpoint", "restore", "unlock"])])
def test_what_was_locked_or_saved_is_undone_without_another_lock(saved: bool, calls: list[str]) -> None:
    driver, agent = Driver(), Agent()
    control = control_of(driver, agent)
    control.lock(5.0)
    if saved:
        control.save(5.0)
    control.thaw(5.0, undo=True)
    assert driver.calls == ["lock", *calls]
    assert (driver.phase_now, agent.is_frozen) == (ControlPhase.RUNNING, False)
    assert control.session.process.suspension.was_saved is saved


@pytest.mark.parametrize("means", ControlMeans)
@pytest.mark.parametrize("was_saved", [False, True])
def test_gcr_computes_beside_a_program_unless_its_driver_gave_it_back(means: ControlMeans, was_saved: bool) -> None:
    process, control = SimpleNamespace(suspension=Suspension(was_saved=was_saved)), SimpleNamespace(means=means)
    target: Any = SimpleNamespace(process=process, control=control)
    assert may_compute_beside(target) is not (was_saved and means is ControlMeans.DRIVER)


@pytest.mark.parametrize(("frozen", "keeps_context"), [(False, False), (True, True)])
def test_where_no_lock_can_be_under_way_none_is_made(frozen: bool, keeps_context: bool) -> None:
    """The agent was not frozen yet; or it makes the calls itself, one at a time."""
    driver = Driver()
    control_of(driver, Agent(frozen), keeps_context).thaw(5.0, undo=True)
    assert driver.calls == []
