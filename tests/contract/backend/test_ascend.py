"""The Ascend backend on the SIMULATED runtime of each CANN release. Nothing here was run on a device."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from gcr.control import ControlMeans
from gcr.errors import BackendMissing, NoContext, UnsupportedState
from gcr.native import sim_dir
from gcr.testing import BackendContract, InspectContract, Peer
from gcr.testing.contract import MakePeer
from gcr.testing.control import Victim

ROOT = Path(__file__).parents[3]
VICTIMS = ROOT / "tests/victims"
BACKEND = "gcr_ascend:AscendBackend"
CONTEXT = 16 << 20


def world(folder: Path, version: str = "", **settings: str) -> Mapping[str, str]:
    """Returns the environment of a process that uses a simulated machine of its own through one CANN release."""
    state = folder / "machine"
    state.mkdir(mode=0o700, exist_ok=True)
    libraries = sim_dir(f"ascend-{version}" if version else "ascend")
    return {
        "PYTHONPATH": os.pathsep.join([str(VICTIMS), str(ROOT / "backends/ascend"), *filter(None, sys.path)]),
        "LD_LIBRARY_PATH": str(libraries),
        "GCR_SIMULATE": "ascend",
        "GCR_SIM_STATE": str(state),
        "GCR_SIM_KERNELS": str(libraries / "kernels.so"),
        **settings,
    }


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    return world(tmp_path)


class Ascend:
    backend = BACKEND
    vendor_libraries = ("libascendcl", "libacl_rt", "libruntime", "libdcmi")
    means = ControlMeans.AGENT
    victim_command: ClassVar = (sys.executable, str(VICTIMS / "acl_told.py"))
    version: ClassVar[str] = ""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return world(tmp_path, self.version)


class TestNewest(Ascend, BackendContract, InspectContract):
    def test_data_and_state_leave_by_the_agents_hand(self, new_peer: MakePeer) -> None:
        """No drain of any kind: its processes copy by themselves."""
        peer = new_peer()
        claims = {answer.name: answer.ok for answer in peer.call("probe")}
        assert (claims["handoff"], claims["copyout"], claims["control_state"]) == (False, True, True)
        assert peer.call("means") is self.means


@pytest.mark.slow
class TestRelease90(TestNewest):
    version = "9.0"


class TestRelease85(TestNewest):
    version = "8.5"


def answers(environment: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    with Peer(BACKEND, environment) as peer:
        return {answer.name: (answer.ok, answer.evidence) for answer in peer.call("probe")}


@pytest.fixture
def victim(environment: Mapping[str, str]) -> Iterator[Victim]:
    running = Victim(Ascend.victim_command, environment)
    yield running
    running.end()


def test_simulated_devices_say_so(environment: Mapping[str, str]) -> None:
    assert answers(environment)["device"][1].startswith("SIMULATED")
    with Peer(BACKEND, environment) as peer:
        assert all("simulated" in device.name.lower() for device in peer.call("devices"))


def test_a_release_without_snapshots_says_so_and_copies_all_the_same(tmp_path: Path) -> None:
    found = answers(world(tmp_path, "8.0"))
    assert not found["snapshots"][0]
    assert not found["control_state"][0]
    assert found["copyout"][0]


def test_without_a_runtime_probe_says_what_is_missing(tmp_path: Path) -> None:
    environment = {**world(tmp_path), "LD_LIBRARY_PATH": ""}
    found = answers(environment)
    assert not any(found[name][0] for name in ("runtime", "device", "dcmi", "copyout", "control_state"))
    with Peer(BACKEND, environment) as peer:
        assert peer.call("devices") == []
        with pytest.raises(BackendMissing, match=r"libascendcl\.so or libacl_rt\.so: "):
            peer.call("open", "GPU-00000000-0000-0000-0000-000000000000")


def test_a_driver_that_does_not_answer_is_no_device_and_says_why(tmp_path: Path) -> None:
    environment = world(tmp_path, GCR_SIM_FAULTS="aclrtGetDeviceCount:*:fail=507899")
    assert "507899" in answers(environment)["device"][1]
    with Peer(BACKEND, environment) as peer:
        assert peer.call("devices") == []


def test_a_worker_gets_no_context(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, environment) as peer:
        device = peer.call("devices")[0]
        with pytest.raises(NoContext):
            peer.call("open", device.uuid)


def test_looking_takes_nothing_of_a_device(environment: Mapping[str, str]) -> None:
    with Peer(BACKEND, environment) as peer:
        peer.call("probe")
        assert [device.used_bytes for device in peer.call("devices")] == [0, 0]


def test_the_shim_names_devices_as_the_backend_does(environment: Mapping[str, str]) -> None:
    program = "from acl_calls import *; say(bytes(acl.aclrtDeviceGetUuid(1).bytes).hex())"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    with Peer(BACKEND, environment) as peer:
        uuid = peer.call("devices")[1].uuid
    assert uuid.removeprefix("GPU-").replace("-", "") == done.stdout.strip()


def test_users_of_a_device_are_named(environment: Mapping[str, str], victim: Victim) -> None:
    victim.digest()
    program = (
        "from gcr_ascend.backend import AscendBackend as B; from gcr.control import NamesHolders;"
        "b = B(); c = b.control(); assert isinstance(c, NamesHolders); print(c.holders(b.devices()[0].uuid))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str({victim.pid: CONTEXT}), done.stderr


@pytest.mark.parametrize("step, more", [("lock", ()), ("checkpoint", ()), ("restore", ({},)), ("unlock", ())])
def test_nothing_is_done_to_a_process_from_outside(
    environment: Mapping[str, str], victim: Victim, step: str, more: tuple[object, ...]
) -> None:
    before = victim.digest()
    with Peer(BACKEND, environment) as control, pytest.raises(UnsupportedState):
        control.call(step, victim.pid, *more, 1.0)
    assert victim.digest() == before
