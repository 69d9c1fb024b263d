"""Control state on AMD: there is no call for it. What the driver keeps goes with the process, by CRIU.

So a process that stays alive keeps its context on the device, and `gcr checkpoint --data-only` is what can be had
without an image of the whole process.
"""

from collections.abc import Iterator, Mapping, Sequence

from gcr import sharing
from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.errors import UnsupportedState
from gcr_amd import devices, kfd

_RCCL_SEGMENT = "/dev/shm/nccl-"  # RCCL kept NCCL's name


class AmdControl:
    """Implements gcr.control.ControlState for what can be seen from outside."""

    means = ControlMeans.PROCESS

    def phase(self, pid: int) -> ControlPhase:
        return ControlPhase.RUNNING if kfd.knows(pid) else ControlPhase.ABSENT

    def inspect(self, pid: int) -> ProcessView:
        phase = self.phase(pid)
        if phase is ControlPhase.ABSENT:
            return ProcessView(pid, phase, {}, ())
        return ProcessView(pid, phase, devices.bytes_of(pid), refusals_of(pid))

    def holders(self, device: str) -> Mapping[int, int]:
        return devices.holders(device)

    def lock(self, pid: int, deadline: float) -> None:
        raise _no_such_call()

    def checkpoint(self, pid: int, deadline: float) -> None:
        raise _no_such_call()

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        raise _no_such_call()

    def unlock(self, pid: int, deadline: float) -> None:
        raise _no_such_call()


def _no_such_call() -> UnsupportedState:
    return UnsupportedState("AMD's driver has no call that checkpoints a living process", hint="--data-only")


def refusals_of(pid: int) -> Sequence[Refusal]:
    """Returns the signs of memory that a process shares; one `not_permitted` when it may not be looked into."""
    return sharing.refusals(pid, _reasons)


def _reasons(pid: int) -> Iterator[Refusal]:
    yield from sharing.verbs(pid)
    yield from sharing.collectives(pid, "RCCL", _RCCL_SEGMENT)
