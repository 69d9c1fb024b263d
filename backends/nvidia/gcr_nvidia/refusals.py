"""Signs, seen from outside, of a process that the driver would checkpoint and never give back (r580).

Only /proc and NVML are read. What a shim reports from inside (UVM, IPC, multicast) is not repeated here.
"""

from collections.abc import Iterator, Sequence

from gcr import sharing
from gcr.control import Refusal
from gcr.processes import open_files
from gcr_nvidia import devices

_NCCL_SEGMENT = "/dev/shm/nccl-"
_FABRIC = "/dev/nvidia-caps-imex-channels/"


def of(pid: int) -> Sequence[Refusal]:
    """Every reason found; one `not_permitted` when the process may not be looked into."""
    return sharing.refusals(pid, _reasons)


def _reasons(pid: int) -> Iterator[Refusal]:
    yield from sharing.verbs(pid)
    yield from sharing.gdrcopy(pid)
    for path in open_files(pid, _FABRIC)[:1]:
        yield Refusal("fabric", f"holds {path}: memory shared with other nodes")
    yield from sharing.collectives(pid, "NCCL", _NCCL_SEGMENT)
    yield from _mig(open_files(pid, "/dev/nvidia"))


def _mig(opened: Sequence[str]) -> Iterator[Refusal]:
    for device in devices.handles():
        if devices.mig_enabled(device) and f"/dev/nvidia{devices.minor_number(device)}" in opened:
            yield Refusal("mig", f"uses {devices.uuid_of(device)}, which is in MIG mode")
