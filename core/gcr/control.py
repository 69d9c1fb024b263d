"""Control state: everything a driver keeps for a process besides the bytes of its device memory.

Implementations live in the control helper: a process of their own, so that a stuck or killed driver call never takes
the daemon with it. Calls block; the helper runs each on its own thread. A call that outlives its deadline raises
DeadlinePassed and may still finish in the driver: ask `phase`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from msgspec import Struct


class ControlPhase(Enum):
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    BUSY = "busy"  # the driver is between two phases
    FAILED = "failed"  # the driver will not give the process back
    ABSENT = "absent"  # the driver does not know this process


class ControlMeans(Enum):
    """The ways to save the control state of a process."""

    DRIVER = "driver"  # the driver's calls, made from outside by the control helper
    AGENT = "agent"  # the runtime's calls, which only the process itself can make
    PROCESS = "process"  # there is no call: what the driver keeps goes with an image of the whole process


class Refusal(Struct, frozen=True):
    """State the driver would take and never give back, or that we may not touch."""

    reason: str  # a stable word: "nccl", "verbs", "mig" …
    detail: str
    hint: str = ""  # the way out, for users; empty: gcr's own page, where it has a section on the reason
    only_unheard: bool = False  # a sign alone: no reason where the process has an agent, which says what is shared


class ProcessView(Struct, frozen=True):
    """The facts that a vendor can tell of a process from outside, without its help."""

    pid: int
    phase: ControlPhase
    bytes_by_device: Mapping[str, int]  # device UUID -> bytes in use, by the device's own count
    refusals: Sequence[Refusal]


@runtime_checkable
class NamesHolders(Protocol):
    """A ControlState that names processes on a device. Needed with means AGENT; without it a process of a job that has
    no agent is passed over."""

    def holders(self, device: str) -> Mapping[int, int]:
        """Bytes by process, by the device's own count."""
        ...


@runtime_checkable
class MovesProcesses(Protocol):
    """A ControlState that can bring a process back on other devices than those it left."""

    def check_move(self, devices: Mapping[str, str]) -> None:
        """Checks that `restore` would take these moves, as far as can be told before; without any, that it takes some.

        Raises DriverTooOld, UnsupportedState, WrongDevice. Touches nothing.
        """
        ...


@runtime_checkable
class TellsReach(Protocol):
    """A ControlState that knows which devices reach each other's memory. Needed where it MovesProcesses: without it a
    move that parts devices fails in the driver, and is taken back."""

    def reaches(self, device: str, peer: str) -> bool:
        """Tells whether work on `device` can read and write memory of `peer`; both are UUIDs of present devices.

        Touches nothing. Raises BackendMissing for a device that is not there.
        """
        ...


class ControlState(Protocol):
    means: ControlMeans
    """With other means than DRIVER, only `phase` and `inspect` are called."""

    def phase(self, pid: int) -> ControlPhase: ...

    def inspect(self, pid: int) -> ProcessView:
        """Look only; touches nothing."""
        ...

    def lock(self, pid: int, deadline: float) -> None:
        """Block the process's driver calls. `deadline` is seconds from now. Raises DeadlinePassed, DriverError."""
        ...

    def checkpoint(self, pid: int, deadline: float) -> None: ...

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        """Bring the state back. `devices` is empty, or maps each device of this machine, old UUID to new.

        The latter only where it MovesProcesses. A refusal leaves the process checkpointed.
        """
        ...

    def unlock(self, pid: int, deadline: float) -> None: ...
