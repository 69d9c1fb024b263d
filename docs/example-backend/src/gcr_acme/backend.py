"""The backend itself: which module answers which question."""

from collections.abc import Sequence
from pathlib import Path

from gcr.backend import Capability, Device, Simulator
from gcr.control import ControlState
from gcr.drain import DataDrain
from gcr.vmm import VmmDrain
from gcr_acme import devices
from gcr_acme.control import AcmeControl
from gcr_acme.memory import AcmeDevice

HERE = Path(__file__).parent


class AcmeBackend:
    name = "acme"
    interface = 1

    def probe(self) -> Sequence[Capability]:
        return devices.capabilities()

    def devices(self) -> Sequence[Device]:
        return devices.present()

    def drain(self, device: str) -> DataDrain:
        return VmmDrain(AcmeDevice(device))

    def control(self) -> ControlState:
        return AcmeControl()

    def shim(self) -> Path:
        return HERE / "libacme_shim.so"

    def simulator(self) -> Simulator:
        return Simulator(HERE / "simulator")
