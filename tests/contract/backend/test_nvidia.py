"""The NVIDIA backend on the SIMULATED driver; tests/gpu/test_nvidia_device.py runs the same contract on a real one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from gcr.backend import Device
from gcr.control import ControlPhase
from gcr.errors import DeadlinePassed, DriverError, NoRoom
from gcr.facilities import FACILITIES
from gcr.testing import BackendContract, ControlContract, DrainContract, Peer
from gcr.testing.control import Victim
from gcr.testing.drain import MIB, expected, send, sizes, specs

VICTIMS = Path(__file__).parents[2] / "victims"
BACKEND = "gcr_nvidia:NvidiaBackend"
SLOW_CONTROL_MS = 400
TRIES = 5  # a busy machine keeps a thread from running by chance, a call that keeps the GIL does each time
SLOW_COPY_BYTES_PER_SECOND = 64 * MIB


class TestContract(BackendContract, DrainContract, ControlContract):
    backend = BACKEND
    vendor_libraries = ("libcuda", "libnvidia-ml")
    victim_command: ClassVar = (sys.executable, str(VICTIMS / "vmm_victim.py"), "--interactive")

    @pytest.fixture
    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return environment


@pytest.fixture
def slow(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {
        **environment,
        "GCR_SIM_CONTROL_MS": str(SLOW_CONTROL_MS),
        "GCR_SIM_BPS": str(SLOW_COPY_BYTES_PER_SECOND),
    }


@contextmanager
def opened(environment: Mapping[str, str]) -> Iterator[Peer]:
    with Peer(BACKEND, environment) as peer:
        device: Device = peer.call("devices")[0]
        peer.call("open", device.uuid)
        yield peer


@pytest.fixture
def slow_victim(slow: Mapping[str, str]) -> Iterator[Victim]:
    victim = Victim(TestContract.victim_command, slow)
    yield victim
    victim.end()


def test_simulated_devices_say_so(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, environment) as peer:
        assert all("simulated" in device.name.lower() for device in peer.call("devices"))
        evidence = {answer.name: answer.evidence for answer in peer.call("probe")}
        assert evidence["device"].startswith("SIMULATED")


def test_everything_hand_over_needs_is_there_on_the_simulator(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, environment) as peer:
        answers = peer.call("probe")
        assert [answer for answer in answers if not answer.ok and answer.name not in FACILITIES] == []
        assert {answer.name for answer in answers if not answer.ok} == set()


def test_without_a_driver_probe_says_what_is_missing_and_there_are_no_devices() -> None:
    if _has_real_driver():
        pytest.skip("this machine has an NVIDIA driver")
    with Peer(BACKEND, {"LD_LIBRARY_PATH": ""}) as peer:
        answers = {answer.name: answer for answer in peer.call("probe")}
        assert not answers["driver"].ok and not answers["nvml"].ok and not answers["checkpoint_api"].ok
        assert peer.call("devices") == []


def _has_real_driver() -> bool:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True, timeout=10)
    return "libcuda.so.1" in listed.stdout


def test_a_copy_past_its_deadline_says_so_and_may_be_waited_for_again(slow: Mapping[str, str]) -> None:
    with opened(slow) as peer:
        handles = specs(16, 16)
        where = peer.call("create", handles)
        passed, seen = peer.call("progress", where, sizes(handles), 0.05)
        assert passed
        assert (seen[0], seen[-1]) == (0, 32 * MIB)


def test_releasing_waits_for_a_copy_in_flight(slow: Mapping[str, str]) -> None:
    with opened(slow) as peer:
        handles = specs(16)
        where = peer.call("create", handles)
        assert peer.call("release_during_read", where, sizes(handles)) == 16 * MIB


def test_other_threads_run_during_a_slow_checkpoint_and_restore(slow: Mapping[str, str], slow_victim: Victim) -> None:
    silences: dict[str, list[float]] = {"checkpoint": [], "restore": []}
    with Peer(BACKEND, slow) as control:
        while not all(min(each, default=1.0) < SLOW_CONTROL_MS / 2000 for each in silences.values()):
            assert len(silences["restore"]) < TRIES, f"seconds for which the GIL was kept: {silences}"
            control.call("lock", slow_victim.pid, 5.0)
            for step, found in silences.items():
                took, silence = control.call("longest_silence", step, slow_victim.pid)
                assert took >= SLOW_CONTROL_MS / 1000
                found.append(silence)
            control.call("unlock", slow_victim.pid, 5.0)


def test_a_control_call_past_its_deadline_still_ends_in_the_driver(
    slow: Mapping[str, str], slow_victim: Victim
) -> None:
    before = slow_victim.digest()
    with Peer(BACKEND, slow) as control:
        control.call("lock", slow_victim.pid, 5.0)
        with pytest.raises(DeadlinePassed):
            control.call("checkpoint", slow_victim.pid, 0.05)
        _until_phase(control, slow_victim.pid, ControlPhase.CHECKPOINTED)
        control.call("restore", slow_victim.pid, {}, 5.0)
        control.call("unlock", slow_victim.pid, 5.0)
    assert slow_victim.digest() == before


def _until_phase(control: Peer, pid: int, wanted: ControlPhase) -> None:
    give_up = time.monotonic() + 10.0
    while control.call("phase", pid) is not wanted:
        assert time.monotonic() < give_up, f"{pid} never became {wanted}"
        time.sleep(0.02)


def test_a_process_that_maps_nccl_segments_is_refused(environment: Mapping[str, str]) -> None:
    name = f"/dev/shm/nccl-gcr-test-{os.getpid()}"
    code = f"import mmap; file = open({name!r}, 'w+b'); file.truncate(4096); keep = mmap.mmap(file.fileno(), 4096)\n"
    victim = Victim((sys.executable, "-c", code + _RUN_VMM_VICTIM), {**environment, "PYTHONPATH": str(VICTIMS)})
    try:
        with Peer(BACKEND, environment) as control:
            refusals = control.call("inspect", victim.pid).refusals
            assert [refusal.reason for refusal in refusals] == ["nccl"]
    finally:
        victim.end()
        Path(name).unlink()


_RUN_VMM_VICTIM = "import sys, vmm_victim; sys.argv[1:] = ['--interactive']; vmm_victim.main()"


def test_a_checkpoint_without_a_lock_names_call_and_result(environment: Mapping[str, str]) -> None:
    victim = Victim(TestContract.victim_command, environment)
    try:
        with Peer(BACKEND, environment) as control, pytest.raises(DriverError) as failed:
            control.call("checkpoint", victim.pid, 5.0)
        assert "cuCheckpointProcessCheckpoint: CUDA_ERROR_" in failed.value.message
    finally:
        victim.end()


def fault(environment: Mapping[str, str], pid: int, rule: str) -> None:
    """Sets a fault `rule` for process `pid` from now on; see shim/sim/core/fault.h."""
    function, n, action = rule.split(":")
    (Path(environment["GCR_SIM_STATE"]) / "faults").write_text(f"{function}@{pid}:{n}:{action}\n")


@pytest.mark.parametrize(
    "rule",
    [
        "cuMemImportFromShareableHandle:2:fail=304",
        "cuMemAddressReserve:1:fail=2",
        "cuMemMap:1:fail=999",
        "cuMemMap:3:fail=999",
        "cuMemSetAccess:1:fail=999",
    ],
)
def test_an_adoption_that_fails_half_way_keeps_nothing_and_may_be_tried_again(
    environment: Mapping[str, str], rule: str
) -> None:
    with opened(environment) as owner, opened(environment) as worker:
        handles = specs(4, 2, 16)
        where = owner.call("create", handles)
        owner.call("fill", where, sizes(handles), 3)
        descriptors, used = worker.call("descriptors"), worker.call("memory").used
        mapped = worker.call("mapped_bytes")
        fault(environment, worker.pid, rule)
        with pytest.raises(DriverError):
            send(owner, where, handles, worker)
        assert worker.call("descriptors") == descriptors
        assert worker.call("mapped_bytes") <= mapped + MIB, "address space stayed reserved"
        adopted = send(owner, where, handles, worker)
        owner.call("release", where)
        assert worker.call("digests", adopted, sizes(handles)) == expected(handles, 3)
        worker.call("release", adopted)
        assert worker.call("memory").used <= used - 22 * MIB


@pytest.mark.parametrize("rule", ["cuMemCreate:3:fail=2", "cuMemMap:2:fail=999", "cuMemSetAccess:1:fail=999"])
def test_a_creation_that_fails_half_way_keeps_nothing(environment: Mapping[str, str], rule: str) -> None:
    with opened(environment) as owner:
        used = owner.call("memory").used
        fault(environment, owner.pid, rule)
        with pytest.raises(NoRoom if "cuMemCreate" in rule else DriverError):
            owner.call("create", specs(64, 64, 2))
        assert owner.call("memory").used <= used


def test_an_export_that_fails_half_way_closes_what_it_opened(environment: Mapping[str, str]) -> None:
    with opened(environment) as owner:
        where = owner.call("create", specs(2, 2, 2))
        descriptors = owner.call("descriptors")
        fault(environment, owner.pid, "cuMemExportToShareableHandle:3:fail=304")
        with pytest.raises(DriverError):
            owner.call("export", where, [1, 2, 3])
        assert owner.call("descriptors") == descriptors


def test_a_copy_that_cannot_be_queued_leaves_none_running(slow: Mapping[str, str]) -> None:
    with opened(slow) as owner:
        handles = specs(16, 2)
        where = owner.call("create", handles)
        fault(slow, owner.pid, "cuMemcpyDtoHAsync:2:fail=999")
        began = time.monotonic()
        with pytest.raises(DriverError):
            owner.call("digests", where, sizes(handles))
        assert time.monotonic() - began >= 16 * MIB / SLOW_COPY_BYTES_PER_SECOND * 0.8, "the first copy was left behind"


@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
def test_a_control_call_that_the_driver_refuses_is_an_error_and_may_be_tried_again(
    environment: Mapping[str, str], step: str
) -> None:
    steps = {"lock": (5.0,), "checkpoint": (5.0,), "restore": ({}, 5.0), "unlock": (5.0,)}
    victim = Victim(TestContract.victim_command, environment)
    try:
        before = victim.digest()
        with Peer(BACKEND, environment) as control:
            fault(environment, control.pid, f"cuCheckpointProcess{step.capitalize()}:1:fail=999")
            for name, arguments in steps.items():
                if name == step:
                    with pytest.raises(DriverError):
                        control.call(name, victim.pid, *arguments)
                control.call(name, victim.pid, *arguments)
        assert victim.digest() == before
    finally:
        victim.end()


def test_a_lock_that_cannot_be_had_in_time_is_a_passed_deadline(environment: Mapping[str, str]) -> None:
    victim = Victim(TestContract.victim_command, environment)
    try:
        with Peer(BACKEND, environment) as control:
            fault(environment, control.pid, "cuCheckpointProcessLock:1:fail=600")
            with pytest.raises(DeadlinePassed):
                control.call("lock", victim.pid, 0.2)
    finally:
        victim.end()
