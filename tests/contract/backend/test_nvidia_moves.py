"""Restores onto other devices by the NVIDIA backend, on the SIMULATED driver."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gcr.control import ControlPhase
from gcr.errors import BackendMissing, DriverError, DriverTooOld, GcrError
from gcr.testing import Peer
from gcr.testing.control import Victim

VICTIMS = Path(__file__).parents[2] / "victims"
BACKEND = "gcr_nvidia:NvidiaBackend"
SECONDS = 20.0
OLD = "575.57.08"  # a driver that checkpoints, and restores on the same devices only


@pytest.fixture
def control(environment: Mapping[str, str]) -> Iterator[Peer]:
    with Peer(BACKEND, environment) as peer:
        yield peer


@pytest.fixture
def victim(environment: Mapping[str, str]) -> Iterator[Victim]:
    running = Victim((sys.executable, str(VICTIMS / "vmm_victim.py"), "--interactive"), environment)
    yield running
    running.end()


def uuids(control: Peer) -> list[str]:
    return [device.uuid for device in control.call("devices")]


def test_a_process_moves_and_the_device_s_own_count_says_so(control: Peer, victim: Victim) -> None:
    first, second = uuids(control)
    before = victim.digest()
    for old, new in ((first, second), (second, first)):
        assert list(control.call("inspect", victim.pid).bytes_by_device) == [old]
        control.call("lock", victim.pid, SECONDS)
        control.call("checkpoint", victim.pid, SECONDS)
        control.call("restore", victim.pid, {first: second, second: first}, SECONDS)
        control.call("unlock", victim.pid, SECONDS)
        assert list(control.call("inspect", victim.pid).bytes_by_device) == [new]
        assert victim.digest() == before


def test_pairs_the_driver_does_not_take_leave_it_checkpointed(control: Peer, victim: Victim) -> None:
    first, second = uuids(control)
    before = victim.digest()
    control.call("lock", victim.pid, SECONDS)
    control.call("checkpoint", victim.pid, SECONDS)
    for pairs in ({first: second}, {first: first, second: first}):
        with pytest.raises(DriverError):
            control.call("restore", victim.pid, pairs, SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.CHECKPOINTED
    control.call("restore", victim.pid, {}, SECONDS)
    control.call("unlock", victim.pid, SECONDS)
    assert victim.digest() == before


def test_what_can_be_told_before(control: Peer) -> None:
    first, second = uuids(control)
    control.call("check_move", {})
    control.call("check_move", {first: second, second: first})
    with pytest.raises(BackendMissing):
        control.call("check_move", {first: "GPU-00000000-0000-0000-0000-000000000000"})


def test_a_driver_that_knows_no_other_devices(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, {**environment, "GCR_SIM_DRIVER": OLD}) as control:
        assert refusal(control, {}) is DriverTooOld
        (found,) = [answer for answer in control.call("probe") if answer.name == "device_map"]
        assert not found.ok and OLD in found.evidence


def refusal(control: Peer, moves: Mapping[str, str]) -> type[GcrError]:
    with pytest.raises(GcrError) as refused:
        control.call("check_move", moves)
    return type(refused.value)


def test_which_devices_reach_each_other(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, {**environment, "GCR_SIM_DEVICES": "3", "GCR_SIM_NO_P2P": "0-2"}) as control:
        first, second, third = uuids(control)
        assert control.call("reaches", first, second) and control.call("reaches", third, second)
        assert not control.call("reaches", first, third) and not control.call("reaches", third, first)
