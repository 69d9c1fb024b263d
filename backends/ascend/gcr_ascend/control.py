"""Control state on Ascend, as far as it can be seen from outside: the snapshot calls are the process's own to make.

gcr's agent inside the process makes them (ControlMeans.AGENT) and knows their phase. This module knows which process
uses which device.
"""

from collections.abc import Iterator, Mapping, Sequence

from gcr import sharing
from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.errors import UnsupportedState
from gcr.processes import maps_contain
from gcr_ascend import devices


class AscendControl:
    """Implements gcr.control.ControlState and NamesHolders."""

    means = ControlMeans.AGENT

    def phase(self, pid: int) -> ControlPhase:
        return ControlPhase.RUNNING if devices.bytes_of(pid) else ControlPhase.ABSENT

    def inspect(self, pid: int) -> ProcessView:
        found = devices.bytes_of(pid)
        if not found:
            return ProcessView(pid, ControlPhase.ABSENT, {}, ())
        return ProcessView(pid, ControlPhase.RUNNING, found, refusals_of(pid))

    def holders(self, device: str) -> Mapping[int, int]:
        return devices.card_of(device).holders()

    def lock(self, pid: int, deadline: float) -> None:
        raise _not_from_outside(pid)

    def checkpoint(self, pid: int, deadline: float) -> None:
        raise _not_from_outside(pid)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        raise _not_from_outside(pid)

    def unlock(self, pid: int, deadline: float) -> None:
        raise _not_from_outside(pid)


def _not_from_outside(pid: int) -> UnsupportedState:
    text = f"process {pid} was not started by gcr run: only the process itself can snapshot its Ascend state"
    return UnsupportedState(text, hint="gcr run")


def refusals_of(pid: int) -> Sequence[Refusal]:
    """Returns the signs of memory that a process shares; one `not_permitted` when it may not be looked into."""
    return sharing.refusals(pid, _reasons)


def _reasons(pid: int) -> Iterator[Refusal]:
    if maps_contain(pid, ["libhccl.so"]):
        yield from sharing.collectives(pid, "HCCL", "/dev/shm/hccl")
