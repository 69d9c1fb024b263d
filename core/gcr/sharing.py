"""Signs, seen from outside, of memory that other processes hold or write as well, which no checkpoint may take.

Reads /proc alone. A backend puts its own reasons together from these. The shim's reports from inside are not repeated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from gcr.control import Refusal
from gcr.processes import mapped_files, open_files

_GDRCOPY = "/dev/gdrdrv"
_UNDER_GCR = "start it with gcr run; docs/limitations.md#nccl"


def refusals(pid: int, reasons: Callable[[int], Iterable[Refusal]]) -> Sequence[Refusal]:
    """Every reason found; one `not_permitted` when the process may not be looked into, none when it is gone."""
    try:
        return list(reasons(pid))
    except PermissionError as denied:
        return [Refusal("not_permitted", f"process {pid} cannot be inspected: {denied.strerror}")]


def verbs(pid: int) -> Iterator[Refusal]:
    for path in open_files(pid, "/dev/infiniband/uverbs")[:1]:
        yield Refusal("verbs", f"holds {path}: a network card may write its memory after the cut")


def gdrcopy(pid: int) -> Iterator[Refusal]:
    """Yields a reason for a process that GDRCopy serves: device memory is pinned, and mapped past the driver."""
    mapped = (path for path in mapped_files(pid) if path.startswith(_GDRCOPY))
    for path in [*open_files(pid, _GDRCOPY), *mapped][:1]:
        text = f"has {path} open: GDRCopy keeps device memory in its place, and maps it into the process"
        yield Refusal("gdrcopy", text)


def collectives(pid: int, library: str, segment: str) -> Iterator[Refusal]:
    """Yields a reason for a process that maps files which begin so: segments of a library of collectives (NCCL's kin).

    They are host memory, and come back. But the ranks may share device memory as well, which only an agent can tell.
    """
    found = [path for path in mapped_files(pid) if path.startswith(segment)]
    if found:
        many = f"maps {len(found)} segments of {library}, {found[0]} for one"
        text = f"{many}: it may share device memory with other ranks, and gcr cannot tell from outside"
        yield Refusal("nccl", text, hint=_UNDER_GCR, only_unheard=True)
