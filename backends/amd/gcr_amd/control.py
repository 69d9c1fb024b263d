"""Control state on AMD: there is no call for it. What the driver keeps goes with the process, by CRIU.

So a process that stays alive keeps its context on the device, and `gcr checkpoint --data-only` is what can be had
without an image of the whole process.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gcr.control import ControlMeans, ControlPhase, ProcessView, Refusal
from gcr.errors import UnsupportedState
from gcr_amd import devices, kfd

_RCCL_SEGMENT = "/dev/shm/nccl-"  # RCCL kept NCCL's name
_VERBS = "/dev/infiniband/uverbs"


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
    """What shares a process's memory with others; one `not_permitted` when it may not be looked into."""
    try:
        return list(_sharing(pid))
    except PermissionError as denied:
        return [Refusal("not_permitted", f"process {pid} cannot be inspected: {denied.strerror}")]
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return []


def _sharing(pid: int) -> Iterator[Refusal]:
    opened = sorted({path for path in _open_files(pid) if path.startswith(_VERBS)})
    if opened:
        yield Refusal("verbs", f"holds {opened[0]}: a network card may write its memory after the cut")
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    if _RCCL_SEGMENT in maps:
        yield Refusal("nccl", "maps segments of RCCL: it shares memory with other ranks")


def _open_files(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(link.readlink())
        except FileNotFoundError:  # closed while we looked
            continue
