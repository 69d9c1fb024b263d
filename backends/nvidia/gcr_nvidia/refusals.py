"""What can be seen of a process from outside that the driver would take and never give back (r580).

Only /proc and NVML are read. What a shim reports from inside (UVM, IPC, multicast) is not repeated here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gcr.control import Refusal
from gcr_nvidia import devices

_NCCL_SEGMENT = "/dev/shm/nccl-"
_VERBS = "/dev/infiniband/uverbs"
_FABRIC = "/dev/nvidia-caps-imex-channels/"


def of(pid: int) -> Sequence[Refusal]:
    """Every reason found; one `not_permitted` when the process may not be looked into."""
    try:
        opened, mapped = list(open_files(pid)), list(mapped_files(pid))
    except PermissionError as denied:
        return [Refusal("not_permitted", f"process {pid} cannot be inspected: {denied.strerror}")]
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return []
    return [*_verbs(opened), *_fabric(opened), *_nccl(mapped), *_mig(opened)]


def open_files(pid: int) -> Iterator[str]:
    """What each descriptor of a process points to."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(link.readlink())
        except FileNotFoundError:  # closed while we looked
            continue


def mapped_files(pid: int) -> Iterator[str]:
    """The path of each file mapping of a process."""
    with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5]


def _verbs(opened: Sequence[str]) -> Iterator[Refusal]:
    found = sorted({path for path in opened if path.startswith(_VERBS)})
    if found:
        yield Refusal("verbs", f"holds {found[0]}: a network card may write its memory after the cut")


def _fabric(opened: Sequence[str]) -> Iterator[Refusal]:
    found = sorted({path for path in opened if path.startswith(_FABRIC)})
    if found:
        yield Refusal("fabric", f"holds {found[0]}: memory shared with other nodes")


def _nccl(mapped: Sequence[str]) -> Iterator[Refusal]:
    found = sorted({path for path in mapped if path.startswith(_NCCL_SEGMENT)})
    if found:
        yield Refusal("nccl", f"maps {len(found)} NCCL segments, {found[0]} for one: it shares memory with other ranks")


def _mig(opened: Sequence[str]) -> Iterator[Refusal]:
    for device in devices.handles():
        if devices.mig_enabled(device) and f"/dev/nvidia{devices.minor_number(device)}" in opened:
            yield Refusal("mig", f"uses {devices.uuid_of(device)}, which is in MIG mode")
