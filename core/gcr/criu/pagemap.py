"""Pagemaps: CRIU's files that tell the addresses of the pages in another file, where they lie one behind the other.

Source: images/pagemap.proto and criu/include/magic.h of CRIU 4.2: two magic numbers; then a length and an entry, again
and again, the first of them a head.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from gcr.criu import messages
from gcr.imageerrors import NotDumped
from gcr.listing import listed

PAGE = 4096
_MAGIC, _COMMON_MAGIC = 0x56084025, 0x54564319
_HEADER, _LENGTH = struct.Struct("<II"), struct.Struct("<I")
_LAZY, _PRESENT = 2, 4  # flags of an entry: it may come later; its pages are in the file


class Pagemap(Struct, frozen=True):
    """A pagemap that was understood. `pages`: the name of the file of pages.

    runs: address and bytes of the pages that are in the file, in its order, as the entries have them
    """

    path: Path
    pages: str
    head: bytes
    entries: Sequence[Any]
    runs: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        """Looks at the entries once: 1 us each, and several steps of a restore ask."""
        found = [(each.vaddr, size_of(each)) for each in self.entries if is_present(each)]
        force_setattr(self, "runs", found)

    def rewrite(self, entries: Sequence[Any]) -> "Pagemap":
        """Replaces the entries of the file. Returns it as it is from then on."""
        payloads = [self.head, *(each.SerializeToString() for each in entries)]
        lines = [_LENGTH.pack(len(payload)) + payload for payload in payloads]
        self.path.write_bytes(_HEADER.pack(_COMMON_MAGIC, _MAGIC) + b"".join(lines))
        return Pagemap(self.path, self.pages, self.head, entries)


def is_present(entry: Any) -> bool:
    return bool(entry.flags & _PRESENT)


def is_left(entry: Any) -> bool:
    """Returns whether CRIU left the pages in the process."""
    return bool(entry.flags & _LAZY) and not is_present(entry)


def as_written(entry: Any) -> Any:
    """Returns the entry as CRIU writes it where it leaves no pages in the process."""
    if is_left(entry):
        entry.flags |= _PRESENT
    return entry


def size_of(entry: Any) -> int:
    """Returns the bytes of its pages. CRIU before 4.2 has their number in another field."""
    return int(entry.nr_pages if entry.HasField("nr_pages") else entry.compat_nr_pages) * PAGE


def part_of(entry: Any, at: int, size: int) -> Any:
    """Returns an entry of `size` bytes of the pages, from `at` on; fields that gcr does not know stay."""
    made = type(entry)()
    made.CopyFrom(entry)
    made.vaddr = entry.vaddr + at
    if entry.HasField("nr_pages"):
        made.nr_pages = size // PAGE
    else:
        made.compat_nr_pages = size // PAGE
    return made


def pagemaps(
    folder: Path, bytes_of: Callable[[str], int] | None = None, but: Collection[str] = ()
) -> Iterator[Pagemap]:
    """Yields the pagemaps of a dump, but those that cannot be read or describe another number of bytes.

    bytes_of: bytes of a file of pages, by its name, where these files are not in the folder
    but: names of files of pages of which the pagemap is not read; that takes 3 us an entry
    """
    known = bytes_of or (lambda name: (folder / name).stat().st_size)
    for path in listed(folder, ".img"):
        if path.name.startswith("pagemap-"):
            try:
                if but and _pages_of(path) in but:
                    continue
                found = _read(path)
                if known(found.pages) == sum(size for _, size in found.runs):
                    yield found
            except (OSError, ValueError, struct.error):
                continue


def all_pagemaps(folder: Path) -> Iterator[Pagemap]:
    """Yields all pagemaps of a dump. Raises NotDumped for one that cannot be read, or is of another number of bytes."""
    for path in listed(folder, ".img"):
        if path.name.startswith("pagemap-"):
            try:
                found = _read(path)
                there = (folder / found.pages).stat().st_size
            except (OSError, ValueError, struct.error) as error:
                raise NotDumped(f"CRIU wrote a {path.name} that cannot be read: {error}") from error
            if there != sum(size for _, size in found.runs):
                raise NotDumped(f"CRIU wrote {there} bytes of {found.pages}, and not those of {path.name}")
            yield found


def _read(path: Path) -> Pagemap:
    """Raises OSError; ValueError, struct.error for other bytes."""
    head, *entries = payloads_of(path.read_bytes(), _MAGIC)
    return Pagemap(path, _named(head), head, messages.pagemap_entries(entries))


def _pages_of(path: Path) -> str:
    """Returns the name of the file of pages of a pagemap. Raises as `_read`."""
    return _named(next(payloads_of(path.read_bytes(), _MAGIC), b""))


def _named(head: bytes) -> str:
    return f"pages-{messages.pagemap_head(head).pages_id}.img"


def payloads_of(data: bytes, magic: int) -> Iterator[bytes]:
    """Yields the entries of a file of CRIU's. Raises ValueError, struct.error for other bytes."""
    if _HEADER.unpack_from(data) != (_COMMON_MAGIC, magic):
        raise ValueError("it has another magic number")
    at = _HEADER.size
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        begin, at = at + _LENGTH.size, at + _LENGTH.size + size
        if at > len(data):
            raise ValueError("an entry is cut off")
        yield data[begin:at]
