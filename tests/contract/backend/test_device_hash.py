"""Hashes of device memory on the SIMULATED devices, and the way out when the device cannot hash."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_amd import world

from gcr.backend import Capability, Device
from gcr.errors import DeadlinePassed, DriverError
from gcr.hashing import CHUNK_BYTES
from gcr.native import hash_path, sim_dir
from gcr.testing import Peer
from gcr.testing.drain import KEY, MIB, eventually, expected_hashes, sizes, specs

FOLDER = Path(__file__).parent
BACKENDS = {"nvidia": "gcr_nvidia:NvidiaBackend", "amd-7.2": "gcr_amd:AmdBackend", "amd-10": "gcr_amd:AmdBackend"}
LAUNCH = {"nvidia": "cuLaunchKernel", "amd-7.2": "hipModuleLaunchKernel", "amd-10": "hipModuleLaunchKernel"}
MEMORY = specs(20, 12)

Setting = tuple[str, Mapping[str, str]]  # a backend, and what its process sees


@pytest.fixture(params=BACKENDS)
def vendor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def setting(vendor: str, environment: Mapping[str, str], tmp_path: Path) -> Setting:
    if vendor == "nvidia":
        return BACKENDS[vendor], environment
    return BACKENDS[vendor], world(tmp_path, vendor.removeprefix("amd-"))


@contextmanager
def opened(backend: str, environment: Mapping[str, str]) -> Iterator[Peer]:
    with Peer(backend, environment) as peer:
        device: Device = peer.call("devices")[0]
        peer.call("open", device.uuid)
        yield peer


def filled(peer: Peer) -> object:
    where = peer.call("create", MEMORY)
    peer.call("fill", where, sizes(MEMORY), 7)
    return where


def answer(peer: Peer) -> Capability:
    return next(each for each in peer.call("probe") if each.name == "device_hash")


def test_the_device_hashes_and_says_that_it_is_simulated(setting: Setting) -> None:
    with opened(*setting) as peer:
        found = peer.call("hash", [filled(peer)], KEY, CHUNK_BYTES)
        assert found.on_device
        assert found == expected_hashes(MEMORY, 7, CHUNK_BYTES)
        assert answer(peer).ok
        assert answer(peer).evidence.startswith("SIMULATED")


def test_a_device_without_room_has_its_memory_hashed_on_the_host(setting: Setting) -> None:
    with opened(*setting) as peer:
        where = filled(peer)
        memory = peer.call("memory")
        ballast = peer.call("ballast", (memory.total - memory.used) // (2 * MIB) * 2 * MIB)
        found = peer.call("hash", [where], KEY, CHUNK_BYTES)
        assert not found.on_device
        assert found == expected_hashes(MEMORY, 7, CHUNK_BYTES)
        peer.call("drop", ballast)
        assert peer.call("hash", [where], KEY, CHUNK_BYTES).on_device


def test_without_the_kernel_memory_is_hashed_on_the_host(setting: Setting, tmp_path: Path) -> None:
    backend, environment = setting
    build = tmp_path / "native"
    (build / "sim/nvidia").mkdir(parents=True)
    (build / "sim/amd").mkdir()
    shutil.copy(hash_path(), build)
    with opened(backend, {**environment, "GCR_NATIVE_DIR": str(build)}) as peer:
        found = peer.call("hash", [filled(peer)], KEY, CHUNK_BYTES)
        assert not found.on_device
        assert found == expected_hashes(MEMORY, 7, CHUNK_BYTES)


def test_a_launch_that_fails_is_an_error_and_keeps_nothing(vendor: str, setting: Setting) -> None:
    backend, environment = setting
    with opened(backend, {**environment, "GCR_SIM_FAULTS": f"{LAUNCH[vendor]}:1:fail=719"}) as peer:
        where = filled(peer)
        used = peer.call("memory").used
        with pytest.raises(DriverError, match=LAUNCH[vendor]):
            peer.call("hash", [where], KEY, CHUNK_BYTES)
        assert eventually(lambda: peer.call("memory").used <= used)
        assert peer.call("hash", [where], KEY, CHUNK_BYTES) == expected_hashes(MEMORY, 7, CHUNK_BYTES)


def test_a_hash_past_its_deadline_is_given_up_and_memory_stays_until_it_is_done(setting: Setting) -> None:
    with opened(*setting) as peer:
        where = filled(peer)
        with pytest.raises(DeadlinePassed):
            peer.call("hash", [where], KEY, CHUNK_BYTES, 0.0)
        _released(peer, where)


def _released(peer: Peer, where: object) -> None:
    give_up = time.monotonic() + 10.0
    while True:
        try:
            return peer.call("release", where)
        except DeadlinePassed:
            assert time.monotonic() < give_up
            time.sleep(0.01)


# ---- AMD: compiled when it is loaded ------------------------------------------------------------------------------


@pytest.fixture(params=["7.2", "10"])
def hiprtc(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Mapping[str, str]]:
    """Builds a stand-in for hiprtc; a simulated device can run its code objects."""
    folder = tmp_path / "rocm" / "lib"
    folder.mkdir(parents=True)
    library, source = folder / "libhiprtc.so", FOLDER / "hiprtc_standin.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)], check=True, timeout=60
    )

    def settings(**more: str) -> Mapping[str, str]:
        found = dict(world(tmp_path, request.param))
        found["PYTHONPATH"] += f":{FOLDER}"
        found["LD_LIBRARY_PATH"] += f":{folder}"
        return {**found, "STANDIN_CODE": str(sim_dir("amd") / "hash.so"), **more}

    return settings


def test_the_kernel_is_compiled_from_the_source_that_ships(hiprtc: Callable[..., Mapping[str, str]]) -> None:
    with opened("amd_with_hiprtc:Backend", hiprtc()) as peer:
        found = peer.call("hash", [filled(peer)], KEY, CHUNK_BYTES)
        assert found.on_device
        assert found == expected_hashes(MEMORY, 7, CHUNK_BYTES)
        assert answer(peer).evidence == "compiled by hiprtc 7.2 for the device"


def test_a_compiler_that_refuses_is_logged_and_memory_is_hashed_on_the_host(
    hiprtc: Callable[..., Mapping[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    with opened("amd_with_hiprtc:Backend", hiprtc(STANDIN_REFUSES="1")) as peer:
        found = peer.call("hash", [filled(peer)], KEY, CHUNK_BYTES)
        assert not found.on_device
        assert found == expected_hashes(MEMORY, 7, CHUNK_BYTES)
    assert "HIPRTC_ERROR_COMPILATION (6): refused as asked" in capfd.readouterr().err


def test_without_hiprtc_the_probe_says_so(hiprtc: Callable[..., Mapping[str, str]]) -> None:
    settings = hiprtc()
    hidden = {**settings, "LD_LIBRARY_PATH": str(sim_dir("amd"))}
    with opened("amd_with_hiprtc:Backend", hidden) as peer:
        assert not answer(peer).ok
        assert "hiprtcVersion" in answer(peer).evidence
        assert peer.call("hash", [filled(peer)], KEY, CHUNK_BYTES) == expected_hashes(MEMORY, 7, CHUNK_BYTES)


def test_the_benchmark_runs_and_says_that_its_device_is_simulated(environment: Mapping[str, str]) -> None:
    program = FOLDER.parents[2] / "benchmarks" / "hash.py"
    words = [sys.executable, str(program), "--gib", "0.0625"]
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SIMULATED") and "host agrees on 64 MiB" in done.stdout
