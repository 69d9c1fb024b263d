"""A process that the driver alone carries: nothing is risked where it was brought somewhere else."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.config import Config
from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.engine import control_phases
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import Course, World
from gcr.engine.routes.driver import checkpoint_of, restore_of
from gcr.engine.steps.by_driver import RESTORE_MARGIN
from gcr.engine.turns import Turns
from gcr.errors import DriverError, Lost, NoRoom, NotAGpuProcess, UnsupportedState, WrongState
from gcr.job.placement import Placement
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.processes import ProcessIdentity

HERE, THERE = "GPU-a", "GPU-b"
SIZE = 1000
EXCHANGED = {HERE: THERE, THERE: HERE}


class Driver:
    """A driver that brought the process to another device; another program took its former room."""

    def __init__(self, free: dict[str, int]) -> None:
        self.free, self.at, self.phase_now = free, THERE, ControlPhase.LOCKED
        self.lost = False

    def phase(self, _pid: int) -> ControlPhase:
        return self.phase_now

    def free_bytes(self) -> dict[str, int]:
        return self.free

    def lock(self, _pid: int, _limit: float) -> None:
        self.phase_now = ControlPhase.LOCKED

    def checkpoint(self, _pid: int, _limit: float) -> None:
        self.free[self.at] += SIZE
        self.phase_now = ControlPhase.CHECKPOINTED

    def restore(self, _pid: int, pairs: dict[str, str], _limit: float) -> None:
        self.at = pairs.get(self.at, self.at)
        self.lost = self.lost or self.free[self.at] < SIZE
        self.free[self.at] -= SIZE
        self.phase_now = ControlPhase.LOCKED

    def unlock(self, _pid: int, _limit: float) -> None:
        self.phase_now = ControlPhase.RUNNING


def swap(driver: Driver) -> DriverSwap:
    journal = SimpleNamespace(amend=lambda *_: None, forget=lambda *_: None)
    node: Any = SimpleNamespace(control=lambda _world: driver, config=Config(), journal=journal, turns=Turns())
    process = Process("7", ProcessIdentity(7, 8), State.SUSPENDED, Way.DRIVER)
    process.suspension.bytes_by_device = {HERE: SIZE}
    process.suspension.placement = Placement(EXCHANGED)
    return DriverSwap(process, node, World("nvidia"), Course("restore", 1, 60.0))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_phases, "UNANSWERED", 0.0)


@pytest.mark.parametrize("free", [0, RESTORE_MARGIN + SIZE])
def test_home_it_comes_only_where_there_is_room(free: int) -> None:
    driver = Driver({HERE: free, THERE: RESTORE_MARGIN})
    one = swap(driver)
    with suppress(NoRoom):
        restore_of(one, {}).run()
    assert not driver.lost
    assert one.process.state == (State.RUNNING if free else State.SUSPENDED)
    assert driver.at == (HERE if free else THERE)


def test_one_that_the_driver_loses_on_the_way_home_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({HERE: 0, THERE: 0})

    def loses(_pid: int, _limit: float) -> None:
        driver.phase_now = ControlPhase.FAILED
        raise DriverError("out of memory")

    monkeypatch.setattr(driver, "checkpoint", loses)
    one = swap(driver)
    with pytest.raises(Lost):
        restore_of(one, {}).run()
    assert one.process.state == State.LOST


def test_where_it_is_it_stays_whatever_room_there_is() -> None:
    driver = Driver({HERE: 0, THERE: 0})
    one = swap(driver)
    restore_of(one, EXCHANGED).run()
    assert (one.process.state, driver.at, driver.lost) == (State.RUNNING, THERE, False)


class Running(Driver):
    """A process that runs, at home. `said`: what was asked of the driver and the journal."""

    means = ControlMeans.DRIVER

    def __init__(self, said: list[str]) -> None:
        super().__init__({HERE: 0})
        self.at, self.phase_now, self.said = HERE, ControlPhase.RUNNING, said
        self.refuses: Exception | None = None
        self.bytes = {HERE: SIZE}

    def inspect(self, pid: int) -> ProcessView:
        return ProcessView(pid, self.phase_now, self.bytes, ())

    def checkpoint(self, pid: int, limit: float) -> None:
        self.said.append("checkpoint")
        if self.refuses:
            raise self.refuses
        super().checkpoint(pid, limit)
        self.bytes = {}

    def lock(self, pid: int, limit: float) -> None:
        self.said.append("lock")
        super().lock(pid, limit)

    def unlock(self, pid: int, limit: float) -> None:
        self.said.append("unlock")
        super().unlock(pid, limit)


def running(said: list[str]) -> tuple[DriverSwap, Running]:
    driver = Running(said)
    one = swap(driver)
    one.process = Process("7", ProcessIdentity(7, 8), way=Way.DRIVER)
    one.node.journal = SimpleNamespace(  # type: ignore[misc,assignment]
        decide=lambda record: said.append(f"decide {record.kind} {dict(record.processes[0].bytes)}"),
        forget=lambda _job: said.append("forget"),
    )
    return one, driver


def test_its_decision_is_written_before_the_driver_is_asked() -> None:
    said: list[str] = []
    one, _ = running(said)
    checkpoint_of(one).run()
    assert said == [f"decide driver {{'{HERE}': {SIZE}}}", "lock", "checkpoint"]
    assert (one.process.state, one.process.suspension.bytes_by_device, one.after) == (State.SUSPENDED, {HERE: SIZE}, {})


def test_what_the_driver_refuses_is_thawed_and_its_decision_forgotten() -> None:
    said: list[str] = []
    one, driver = running(said)
    driver.refuses = DriverError("not supported")
    with pytest.raises(DriverError):
        checkpoint_of(one).run()
    assert said[1:] == ["lock", "checkpoint", "unlock", "forget"]
    assert (one.process.state, driver.phase_now) == (State.RUNNING, ControlPhase.RUNNING)


def test_a_checkpoint_by_the_driver_can_be_given_up() -> None:
    said: list[str] = []
    one, driver = running(said)
    prepared = checkpoint_of(one).prepare()
    assert (one.process.state, driver.phase_now) == (State.FROZEN, ControlPhase.CHECKPOINTED)
    prepared.abort()
    assert said[3:] == ["unlock", "forget"]
    assert (one.process.state, driver.phase_now) == (State.RUNNING, ControlPhase.RUNNING)


@pytest.mark.parametrize(
    ("phase", "means", "error"),
    [
        (ControlPhase.ABSENT, ControlMeans.DRIVER, NotAGpuProcess),
        (ControlPhase.RUNNING, ControlMeans.AGENT, UnsupportedState),
        (ControlPhase.LOCKED, ControlMeans.DRIVER, WrongState),
    ],
)
def test_what_is_refused_is_not_touched(phase: ControlPhase, means: ControlMeans, error: type[Exception]) -> None:
    said: list[str] = []
    one, driver = running(said)
    driver.phase_now, driver.means = phase, means
    with pytest.raises(error):
        checkpoint_of(one).run()
    assert said == []
