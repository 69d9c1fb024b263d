"""The simulated NVIDIA driver, and a machine of its own for each test."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gcr.native import NativeMissing, sim_dir
from gcr.testing.nursery import import_first

ROOT = Path(__file__).parents[3]
BUILD_SECONDS = 300

import_first("gcr_nvidia:NvidiaBackend", "gcr_nvidia.backend", "cuda.bindings.driver", "pynvml")
import_first("gcr_amd:AmdBackend", "gcr_amd.backend", "hip")
import_first("gcr_ascend:AscendBackend", "gcr_ascend.backend")


@pytest.fixture(scope="session")
def simulated_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the simulated libcuda.so.1: the installed one, else built for this run."""
    try:
        return sim_dir("nvidia")
    except NativeMissing:
        build = tmp_path_factory.mktemp("native")
    cmake = shutil.which("cmake")
    assert cmake, "neither an installed simulator nor cmake: make test provides both"
    for step in (["-S", str(ROOT), "-B", str(build)], ["--build", str(build), "-j2"]):
        subprocess.run([cmake, *step], check=True, timeout=BUILD_SECONDS, capture_output=True)
    return build / "sim" / "nvidia"


@pytest.fixture
def environment(simulated_driver: Path, tmp_path: Path) -> Mapping[str, str]:
    state = tmp_path / "machine"
    state.mkdir(mode=0o700)
    return {"LD_LIBRARY_PATH": str(simulated_driver), "GCR_SIMULATE": "nvidia", "GCR_SIM_STATE": str(state)}
