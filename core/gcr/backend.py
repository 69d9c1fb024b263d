"""Backend: one vendor's plugin. Importing one loads no vendor library; absence of hardware never raises."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from gcr.control import ControlState
from gcr.drain import DataDrain

INTERFACE_VERSION = 1
"""Of Backend, DataDrain, ControlState and the hooks together. Goes up when a plugin for the last would break."""


class Capability(Struct, frozen=True):
    """One thing a backend can or cannot do here, with what showed it and what would mend it."""

    name: str
    ok: bool
    evidence: str
    remedy: str = ""
    needed: bool = True  # False: gcr works without it, only less well


class Device(Struct, frozen=True):
    """Identified by UUID everywhere, never by ordinal."""

    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    link: str = ""  # "PCIe 5 x16", as the device says


class Backend(Protocol):
    name: str

    interface: int
    """The INTERFACE_VERSION this was written for: the number itself, so that it does not change with gcr."""

    def probe(self) -> Sequence[Capability]:
        """Returns the capabilities here; absence is one with ok=False, never an exception. Loads vendor libraries."""
        ...

    def devices(self) -> Sequence[Device]:
        """Devices present; empty without a driver."""
        ...

    def drain(self, device: str) -> DataDrain:
        """The data plane of one device, by UUID. Called once, inside that device's worker."""
        ...

    def control(self) -> ControlState:
        """Called once, inside the control helper."""
        ...


class Simulator(Struct, frozen=True):
    """A simulated driver: the folder of its libraries, and what else a process must see to find it."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class BringsShim(Protocol):
    """A backend with a shim of its own for its programs, since gcr's does not know the vendor's calls."""

    def shim(self) -> Path | None:
        """Its file; None: gcr's own. Called by `gcr run`; loads no vendor library."""
        ...


@runtime_checkable
class BringsSimulator(Protocol):
    """A backend with a simulated driver, for `gcr run --simulate`."""

    def simulator(self) -> Simulator | None:
        """None: it was not built. Raises NativeMissing. Called by `gcr run`; loads no vendor library."""
        ...
