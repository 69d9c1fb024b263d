"""The operations of a control helper: the driver's calls about the control state of a process."""

from typing import Generic

from msgspec import Struct

from gcr.backend import Device
from gcr.control import ControlMeans, ControlPhase, Refusal
from gcr.protocol.operations.operation import A, Nothing, Operation
from gcr.protocol.operations.operation import Ready as Ready


class OfProcess(Operation[A], Generic[A], frozen=True):
    pid: int


class Timed(OfProcess[Nothing], frozen=True):
    """`deadline`: seconds."""

    deadline: float


class DevicesSeen(Struct, frozen=True):
    devices: tuple[Device, ...]


class Devices(Operation[DevicesSeen], frozen=True):
    op = "devices"


class MeansUsed(Struct, frozen=True):
    means: ControlMeans


class Means(Operation[MeansUsed], frozen=True):
    op = "means"


class HoldersFound(Struct, frozen=True):
    """Bytes by pid."""

    holders: dict[int, int]


class Holders(Operation[HoldersFound], frozen=True):
    op = "holders"

    device: str


class CheckMove(Operation[Nothing], frozen=True):
    """`devices`: UUIDs, old to new; none: whether the vendor moves processes at all."""

    op = "check_move"

    devices: dict[str, str]


class ReachFound(Struct, frozen=True):
    reaches: bool


class Reaches(Operation[ReachFound], frozen=True):
    """Asks if work on `device` reaches memory of `peer`; both are UUIDs."""

    op = "reaches"

    device: str
    peer: str


class PhaseSeen(Struct, frozen=True):
    phase: ControlPhase


class Phase(OfProcess[PhaseSeen], frozen=True):
    op = "phase"


class Inspected(Struct, frozen=True):
    phase: ControlPhase
    bytes_by_device: dict[str, int]
    refusals: tuple[Refusal, ...]


class Inspect(OfProcess[Inspected], frozen=True):
    op = "inspect"


class Lock(Timed, frozen=True):
    op = "lock"


class Checkpoint(Timed, frozen=True):
    op = "checkpoint"


class Restore(Timed, frozen=True):
    op = "restore"

    devices: dict[str, str]


class Unlock(Timed, frozen=True):
    op = "unlock"
