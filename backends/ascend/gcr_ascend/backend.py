"""The backend itself: which module answers which question."""

import os
from collections.abc import Sequence

from gcr.backend import Capability, Device, Simulator
from gcr.control import ControlState
from gcr.drain import DataDrain
from gcr.errors import BackendMissing, NoContext
from gcr.native import sim_dir
from gcr_ascend import devices, probe
from gcr_ascend.control import AscendControl

NEWEST_SIMULATED = "9.1"


class AscendBackend:
    name = "ascend"
    interface = 1

    def probe(self) -> Sequence[Capability]:
        return probe.capabilities()

    def devices(self) -> Sequence[Device]:
        return devices.present()

    def drain(self, device: str) -> DataDrain:
        """There is none: the worker keeps the arena without a context, and so the device free for a restore.

        Raises NoContext, BackendMissing for a device that is not here.
        """
        if device not in devices.ordinals():
            raise BackendMissing(f"no Ascend device {device} here", hint="gcr devices")
        raise NoContext("Ascend's runtime hands no memory over: each process copies its own")

    def control(self) -> ControlState:
        return AscendControl()

    def simulator(self) -> Simulator:
        release = os.environ.get("GCR_SIM_CANN_VERSION", NEWEST_SIMULATED)
        return Simulator(sim_dir("ascend" if release == NEWEST_SIMULATED else f"ascend-{release}"))
