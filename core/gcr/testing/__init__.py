"""The contract every backend holds, as pytest classes to subclass: for gcr's own backends and for strangers'.

    from gcr.testing import BackendContract, ControlContract, DrainContract

    class TestMyBackend(BackendContract, DrainContract, ControlContract):
        backend = "my_package:MyBackend"            # a factory, importable in a child process
        vendor_libraries = ("libmyvendor",)         # must not be mapped by importing it
        victim_command = (sys.executable, "victim.py")  # see gcr.testing.control

        @pytest.fixture
        def environment(self, gcr_device): return gcr_device   # what the children need to find the driver

Which classes: BackendContract always; DrainContract where its probe claims `handoff`, else CopyContract;
ControlContract where its control means are DRIVER, else InspectContract with `means` set. A class that does not fit
the claims fails.

Everything vendor-specific happens in child processes (`gcr.testing.peer`), each with a deadline: the two ends of a
hand-over are two processes, and the descriptors cross between them as they do in gcr. `gcr.testing.plugin` has fixtures
for devices, and for gcr at work on them. Needs pytest, which is loaded with the first of the classes: the child
processes have no use for it. docs/writing-a-backend.md leads through it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcr.testing.contract import BackendContract
    from gcr.testing.control import ControlContract, InspectContract
    from gcr.testing.drain import CopyContract, DrainContract
    from gcr.testing.machine import Job, SimulatedMachine
    from gcr.testing.peer import Peer

__all__ = [
    "BackendContract",
    "ControlContract",
    "CopyContract",
    "DrainContract",
    "InspectContract",
    "Job",
    "Peer",
    "SimulatedMachine",
]

_HOME = {
    "BackendContract": "contract",
    "ControlContract": "control",
    "InspectContract": "control",
    "CopyContract": "drain",
    "DrainContract": "drain",
    "Job": "machine",
    "SimulatedMachine": "machine",
    "Peer": "peer",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
