"""Leaves pages of zeros out of what CRIU restores: private anonymous memory that it does not fill reads as zeros.

CRIU saves each page that a process has touched, whatever is in it. The driver of a GPU gives a process hundreds of MiB
of zeros; to fill them takes time and memory.

Source: images/mm.proto, vma.proto and criu/include/image.h of CRIU 4.2.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import messages
from gcr.criu.pagemap import Pagemap, is_present, pagemaps, part_of, payloads_of, size_of
from gcr.criu.spans import Span, common, joined, less, meeting

_MM_MAGIC = 0x57492820
_ANON_PRIVATE = 1 << 9  # in the status of an area
_KINDS = "pagemap-"


class Spare(Struct, frozen=True):
    """A file of pages. `spans`: those of it that may be left out where they are zeros."""

    pagemap: Pagemap
    spans: Sequence[Span]

    def leave_out(self, left: Sequence[Span]) -> Pagemap:
        """Takes spans out of the pagemap, which the file of pages does not have any more. Returns it as it is then."""
        return self.pagemap.rewrite([*_without(self.pagemap.entries, left)]) if left else self.pagemap


def spare(folder: Path, bytes_of: Callable[[str], int]) -> Mapping[str, Spare]:
    """Returns the files of pages by name. They need not be in the folder: `bytes_of` tells the bytes of each.

    Those that are not understood are not among them.
    """
    found = {}
    for each in pagemaps(folder, bytes_of):
        areas = _private_areas(folder, each.path.stem.removeprefix(_KINDS))
        found[each.pages] = Spare(each, [*joined(_in_file(each.runs, areas))])
    return found


def _private_areas(folder: Path, process: str) -> Sequence[Span]:
    """Returns the addresses of private anonymous memory of a process, in order; none where that is not known.

    Other pagemaps are of memory that several processes share, and have no process.
    """
    try:
        (payload,) = payloads_of((folder / f"mm-{process}.img").read_bytes(), _MM_MAGIC)
        return sorted((each.start, each.end) for each in messages.mm_entry(payload).vmas if each.status & _ANON_PRIVATE)
    except (OSError, ValueError, struct.error):
        return ()


def _in_file(runs: Sequence[Span], areas: Sequence[Span]) -> Iterator[Span]:
    """Yields the spans of a file of pages that lie in areas. `runs`: address and bytes; both in order of addresses."""
    at = 0
    for address, size in runs:
        end = address + size
        for first, last in common([(address, end)], meeting(areas, address, end)):
            yield at + first - address, at + last - address
        at += size


def _without(entries: Sequence[Any], left: Sequence[Span]) -> Iterator[Any]:
    """Yields the entries of what remains of the file of pages."""
    at = 0
    for entry in entries:
        if not is_present(entry):
            yield entry
            continue
        begin, at = at, at + size_of(entry)
        for first, last in less([(begin, at)], meeting(left, begin, at)):
            yield part_of(entry, first - begin, last - first)
