"""The backend itself: which module answers which question."""

from collections.abc import Sequence

from gcr.backend import Capability, Device, Simulator
from gcr.control import ControlState
from gcr.drain import DataDrain
from gcr.native import sim_dir
from gcr.vmm import VmmDrain
from gcr_amd import devices, probe
from gcr_amd.control import AmdControl
from gcr_amd.memory import HipDevice


class AmdBackend:
    name = "amd"
    interface = 1

    def probe(self) -> Sequence[Capability]:
        return probe.capabilities()

    def devices(self) -> Sequence[Device]:
        return devices.present()

    def drain(self, device: str) -> DataDrain:
        return VmmDrain(HipDevice(device))

    def control(self) -> ControlState:
        return AmdControl()

    def simulator(self) -> Simulator:
        folder = sim_dir("amd")
        return Simulator(folder, {"ROCM_PATH": str(folder)})  # hip-python 10 prefers it to the search path
