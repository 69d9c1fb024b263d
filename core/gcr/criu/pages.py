"""The sizes of chunks of pages that CRIU wrote; the next image of the same processes finds the same chunks.

CRIU writes a process's pages one behind the other, by their addresses, and leaves out those that are not there. One
page more or less shifts all that follow. So a chunk has the pages of one window of addresses, however many are there.

Source: images/pagemap.proto and criu/include/magic.h of CRIU 4.1: two magic numbers; then a length and an entry, again
and again, the first of them a head.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from gcr.criu import messages
from gcr.listing import listed

_PAGE = 4096
_COMMON_MAGIC, _PAGEMAP_MAGIC = 0x54564319, 0x56084025
_HEADER, _LENGTH = struct.Struct("<II"), struct.Struct("<I")
_PRESENT = 4  # flag of an entry: its pages are in the file

Run = tuple[int, int]  # address and bytes of pages that are there, one behind the other


def chunk_sizes(folder: Path, most: int) -> Mapping[str, Sequence[int]]:
    """Returns the sizes of the chunks of each file of pages, by name; none is larger than `most`.

    Leaves out a file whose pagemap cannot be read or describes another number of bytes; it is cut at regular sizes.
    """
    found = {}
    for path in _pagemaps(folder):
        try:
            name, runs = _runs(path.read_bytes())
            if (folder / name).stat().st_size == sum(size for _, size in runs):
                found[name] = [*_cut(runs, most)]
        except (OSError, ValueError, struct.error):
            continue
    return found


def _pagemaps(folder: Path) -> Sequence[Path]:
    return [path for path in listed(folder, ".img") if path.name.startswith("pagemap-")]


def _runs(data: bytes) -> tuple[str, list[Run]]:
    """Returns the name of the file of pages, and the runs in it. Raises ValueError, struct.error for other bytes."""
    if _HEADER.unpack_from(data) != (_COMMON_MAGIC, _PAGEMAP_MAGIC):
        raise ValueError("no pagemap")
    head, *entries = _entries(data)
    parsed = [messages.pagemap_entry(each) for each in entries]
    there = [(each.vaddr, each.nr_pages * _PAGE) for each in parsed if each.flags & _PRESENT]
    return f"pages-{messages.pagemap_head(head).pages_id}.img", there


def _entries(data: bytes) -> Iterator[bytes]:
    at = _HEADER.size
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        begin, at = at + _LENGTH.size, at + _LENGTH.size + size
        if at > len(data):
            raise ValueError("an entry is cut off")
        yield data[begin:at]


def _cut(runs: Sequence[Run], most: int) -> Iterator[int]:
    """Yields the bytes of each window of `most` addresses, in the order of the file."""
    for _, parts in groupby(_parts(runs, most), lambda part: part[0]):
        yield sum(size for _, size in parts)


def _parts(runs: Sequence[Run], most: int) -> Iterator[tuple[int, int]]:
    """Yields the number of a window, and the bytes of a run that are in it."""
    for address, size in runs:
        end = address + size
        while address < end:
            window = address // most
            after = min(end, (window + 1) * most)
            yield window, after - address
            address = after
