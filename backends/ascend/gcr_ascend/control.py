"""Control state on Ascend, as far as it can be seen from outside: the snapshot calls are the process's own to make.

gcr's agent inside the process makes them (ControlMeans.AGENT) and knows their phase; here is who uses which device.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.errors import UnsupportedState
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
    """What shares a process's memory with others; one `not_permitted` when it may not be looked into."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except PermissionError as denied:
        return [Refusal("not_permitted", f"process {pid} cannot be inspected: {denied.strerror}")]
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return []
    if "libhccl.so" in maps and "/dev/shm/hccl" in maps:
        return [Refusal("nccl", "maps segments of HCCL: it shares memory with other ranks")]
    return []
