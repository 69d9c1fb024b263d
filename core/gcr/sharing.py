"""Signs, seen from outside, of memory that other processes hold or write as well, which no checkpoint may take.

Reads /proc alone. A backend puts its own reasons together from these. The shim's reports from inside are not repeated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from gcr.control import Refusal
from gcr.processes import mapped_files, open_files


def refusals(pid: int, reasons: Callable[[int], Iterable[Refusal]]) -> Sequence[Refusal]:
    """Every reason found; one `not_permitted` when the process may not be looked into, none when it is gone."""
    try:
        return list(reasons(pid))
    except PermissionError as denied:
        return [Refusal("not_permitted", f"process {pid} cannot be inspected: {denied.strerror}")]


def verbs(pid: int) -> Iterator[Refusal]:
    for path in open_files(pid, "/dev/infiniband/uverbs")[:1]:
        yield Refusal("verbs", f"holds {path}: a network card may write its memory after the cut")


def collectives(pid: int, library: str, segment: str) -> Iterator[Refusal]:
    """Segments that a library of collectives (NCCL and its kin) shares with other ranks: files that begin so."""
    found = [path for path in mapped_files(pid) if path.startswith(segment)]
    if found:
        many = f"maps {len(found)} segments of {library}, {found[0]} for one"
        yield Refusal("nccl", f"{many}: it shares memory with other ranks")
