"""The backend itself: which module answers which question."""

from collections.abc import Sequence

from gcr.backend import Capability, Device, Simulator
from gcr.control import ControlState
from gcr.drain import DataDrain
from gcr.native import sim_dir
from gcr.vmm import VmmDrain
from gcr_nvidia import devices, probe
from gcr_nvidia.control import NvidiaControl
from gcr_nvidia.memory import CudaDevice


class NvidiaBackend:
    name = "nvidia"
    interface = 1

    def probe(self) -> Sequence[Capability]:
        return probe.capabilities()

    def devices(self) -> Sequence[Device]:
        return devices.present()

    def drain(self, device: str) -> DataDrain:
        return VmmDrain(CudaDevice(device))

    def control(self) -> ControlState:
        return NvidiaControl()

    def simulator(self) -> Simulator:
        return Simulator(sim_dir("nvidia"))
