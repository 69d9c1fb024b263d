"""A process that the driver alone carries: nothing is risked where it was brought somewhere else."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.config import Config
from gcr.control import ControlPhase
from gcr.engine import control_phases
from gcr.engine.driver_swap import RESTORE_MARGIN, DriverSwap
from gcr.engine.node import Course, World
from gcr.errors import DriverError, Lost, NoRoom
from gcr.job.placement import Placement
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.processes import ProcessIdentity

HERE, THERE = "GPU-a", "GPU-b"
SIZE = 1000
EXCHANGED = {HERE: THERE, THERE: HERE}


class Driver:
    """It has brought the process to another device, and somebody took the room that it had before."""

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
    node: Any = SimpleNamespace(control=lambda _world: driver, config=Config(), journal=journal)
    process = Process("7", ProcessIdentity(7, 8), State.SUSPENDED, Way.DRIVER)
    process.bytes_by_device = {HERE: SIZE}
    process.placement = Placement(EXCHANGED)
    return DriverSwap(process, node, World("nvidia"), Course("restore", 1, 60.0))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_phases, "UNANSWERED", 0.0)


@pytest.mark.parametrize("free", [0, RESTORE_MARGIN + SIZE])
def test_home_it_comes_only_where_there_is_room(free: int) -> None:
    driver = Driver({HERE: free, THERE: RESTORE_MARGIN})
    one = swap(driver)
    with suppress(NoRoom):
        one.restore({})
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
        one.restore({})
    assert one.process.state == State.LOST


def test_where_it_is_it_stays_whatever_room_there_is() -> None:
    driver = Driver({HERE: 0, THERE: 0})
    one = swap(driver)
    one.restore(EXCHANGED)
    assert (one.process.state, driver.at, driver.lost) == (State.RUNNING, THERE, False)
