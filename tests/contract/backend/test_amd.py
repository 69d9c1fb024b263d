"""The AMD backend on the SIMULATED runtime, with both generations of hip-python. Nothing here was run on a device."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "victims"))

import hip_python

from gcr.control import ControlMeans
from gcr.errors import BackendMissing, UnsupportedState
from gcr.native import sim_dir
from gcr.testing import BackendContract, CopyContract, DrainContract, InspectContract, Peer
from gcr.testing.control import Victim
from gcr.testing.drain import eventually, send, specs

VICTIMS = Path(__file__).parents[2] / "victims"
BACKEND = "gcr_amd:AmdBackend"
BACKENDS = Path(__file__).parents[3] / "backends/amd"


def world(folder: Path, generation: str, **settings: str) -> Mapping[str, str]:
    """Returns the environment of a process that uses this hip-python on a simulated machine of its own."""
    state = folder / "machine"
    state.mkdir(mode=0o700, exist_ok=True)
    path = [str(hip_python.folder(generation)), str(VICTIMS), str(BACKENDS), *filter(None, sys.path)]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "LD_LIBRARY_PATH": str(sim_dir("amd")),
        "ROCM_PATH": str(sim_dir("amd")),
        "GCR_SIMULATE": "amd",
        "GCR_SIM_STATE": str(state),
        "GCR_SIM_KERNELS": str(sim_dir("amd") / "kernels.so"),
        **settings,
    }


class Amd:
    backend = BACKEND
    vendor_libraries = ("libamdhip64",)
    means = ControlMeans.PROCESS
    victim_command: ClassVar = (sys.executable, str(VICTIMS / "hip_victim.py"), "--interactive", "--still")
    generation: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return world(tmp_path, self.generation, **self.settings)


class TestWithHipPython10(Amd, BackendContract, DrainContract, InspectContract):
    generation = "10"


@pytest.mark.slow
class TestWithHipPython7(Amd, BackendContract, DrainContract, InspectContract):
    generation = "7.2"


@pytest.mark.slow
class TestOnARuntimeThatImportsByAddress(Amd, DrainContract):
    generation = "10"
    settings: ClassVar = {"GCR_SIM_HIP_VERSION": "6.4"}


@pytest.mark.slow
class TestWhereMemoryIsKept(Amd, DrainContract):
    generation = "10"
    settings: ClassVar = {"GCR_SIM_QUIRKS": "leak,elsewhere"}


@pytest.mark.slow
class TestWhereMemoryIsKeptWithItsAddress(Amd, DrainContract):
    generation = "10"
    settings: ClassVar = {"GCR_SIM_QUIRKS": "leak-hard"}

    def test_a_forgotten_handle_is_free_at_once(self, owner: Peer, worker: Peer) -> None:
        """It cannot be: its address goes with the whole range. With that it is free."""
        handles = specs(2, 64, 2)
        before = worker.call("memory").used
        where = owner.call("create", handles)
        adopted = send(owner, where, handles, worker)
        owner.call("release", where)
        worker.call("forget", adopted, [handles[1].id])
        worker.call("release", adopted)
        assert eventually(lambda: worker.call("memory").used <= before)


class TestWhereNothingIsExported(Amd, BackendContract):
    generation = "7.2"
    settings: ClassVar = {"GCR_SIM_QUIRKS": "noexport"}


@pytest.mark.slow
class TestCopiesWhereNothingIsExported(Amd, CopyContract):
    generation = "7.2"
    settings: ClassVar = {"GCR_SIM_QUIRKS": "noexport"}


@pytest.mark.slow
class TestCopiesWhereNothingIsExportedWithHipPython10(TestCopiesWhereNothingIsExported, BackendContract):
    generation = "10"


def answers(environment: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    with Peer(BACKEND, environment) as peer:
        return {answer.name: (answer.ok, answer.evidence) for answer in peer.call("probe")}


@pytest.mark.parametrize("generation", hip_python.REQUIREMENTS)
def test_simulated_devices_say_so(tmp_path: Path, generation: str) -> None:
    environment = world(tmp_path, generation)
    assert answers(environment)["device"][1].startswith("SIMULATED")
    with Peer(BACKEND, environment) as peer:
        assert all("simulated" in device.name.lower() for device in peer.call("devices"))


@pytest.mark.parametrize(
    "quirks, chosen",
    [("", "plain"), ("leak", "map_over"), ("leak,elsewhere", "map_over"), ("leak-hard", "reserve_again")],
)
@pytest.mark.parametrize("generation", hip_python.REQUIREMENTS)
def test_how_memory_is_given_back_is_found_out(tmp_path: Path, generation: str, quirks: str, chosen: str) -> None:
    found = answers(world(tmp_path, generation, GCR_SIM_QUIRKS=quirks))["release"]
    assert found[0]
    assert found[1].startswith(chosen)


def test_a_runtime_that_keeps_memory_whatever_is_done_says_so(tmp_path: Path) -> None:
    found = answers(world(tmp_path, "10", GCR_SIM_QUIRKS="leak-hard,elsewhere"))["release"]
    assert not found[0]
    assert found[1].startswith("kept")


@pytest.mark.parametrize("generation", hip_python.REQUIREMENTS)
def test_without_a_runtime_probe_says_what_is_missing(tmp_path: Path, generation: str) -> None:
    environment = {**world(tmp_path, generation), "LD_LIBRARY_PATH": "", "ROCM_PATH": str(tmp_path)}
    found = answers(environment)
    assert found["bindings"][0]
    assert not found["runtime"][0]
    assert not found["device"][0]
    with Peer(BACKEND, environment) as peer:
        assert peer.call("devices") == []
        with pytest.raises(BackendMissing):
            peer.call("open", "GPU-00000000-0000-0000-0000-000000000000")


def test_a_runtime_that_is_too_old_is_refused(tmp_path: Path) -> None:
    environment = world(tmp_path, "10", GCR_SIM_HIP_VERSION="5.3")
    with Peer(BACKEND, environment) as peer, pytest.raises(BackendMissing, match=r"5\.3, older than 5\.4"):
        peer.call("open", "GPU-00000000-0000-0000-0000-000000000000")


def test_the_state_of_a_living_process_cannot_be_saved(tmp_path: Path) -> None:
    environment = world(tmp_path, "10")
    victim = Victim(Amd.victim_command, environment)
    try:
        with Peer(BACKEND, environment) as control, pytest.raises(UnsupportedState):
            control.call("lock", victim.pid, 1.0)
    finally:
        victim.end()
