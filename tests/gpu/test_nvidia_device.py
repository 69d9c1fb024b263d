"""The published contract on a real device. Needs one; nothing here is simulated."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from gcr.backend import Device
from gcr.testing import BackendContract, ControlContract, DrainContract, Peer

VICTIMS = Path(__file__).parents[1] / "victims"
BACKEND = "gcr_nvidia:NvidiaBackend"


@pytest.fixture(scope="module", autouse=True)
def real_device() -> None:
    with Peer(BACKEND, {}) as peer:
        found: Sequence[Device] = peer.call("devices")
    if not found:
        pytest.skip("no NVIDIA device")
    assert not any("simulated" in device.name.lower() for device in found)


@pytest.mark.gpu
class TestDevice(BackendContract, DrainContract, ControlContract):
    backend = BACKEND
    vendor_libraries = ("libcuda", "libnvidia-ml")
    victim_command: ClassVar = (sys.executable, str(VICTIMS / "vmm_victim.py"), "--interactive")
