"""The memory that processes share, as `ps` shows it: bytes by the other process, and which of the two owns them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gcr.api.listings import SharedMemory
from gcr.job.process import Process

Rows = Mapping[int, tuple[SharedMemory, ...]]
"""The rows of each process, by its pid."""

NO_ROWS: Rows = MappingProxyType({})


def shared(processes: Sequence[Process]) -> Rows:
    """Returns what the processes share, as each of them said last. Memory that one holds twice counts once."""
    names = {each.seen.shares.process: each.identity.pid for each in processes if each.seen.shares.process}
    sizes = Counter[tuple[int, int | None]]()  # by holder and owner
    for holder in processes:
        held = {(each.owner, each.there): each.size for each in holder.seen.shares.foreign}
        for (name, _), size in held.items():
            sizes[holder.identity.pid, names.get(name)] += size
    found: dict[int, list[SharedMemory]] = {}
    for (pid, owner), size in sorted(sizes.items(), key=str):
        found.setdefault(pid, []).append(SharedMemory(pid=owner, bytes=size, owner=True))
        if owner is not None:
            found.setdefault(owner, []).append(SharedMemory(pid=pid, bytes=size, owner=False))
    return {pid: tuple(rows) for pid, rows in found.items()}
