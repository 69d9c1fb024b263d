"""The sizes of chunks of pages that CRIU wrote; the next image of the same processes finds the same chunks.

CRIU writes a process's pages one behind the other, by their addresses, and leaves out those that are not there. One
page more or less shifts all that follow. So a chunk has the pages of one window of addresses, however many are there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from gcr.criu.pagemap import pagemaps
from gcr.processmemory import Span


def chunk_sizes(folder: Path, most: int, but: Collection[str] = ()) -> Mapping[str, Sequence[int]]:
    """Returns the sizes of the chunks of each file of pages, by name; none is larger than `most`.

    Leaves out a file whose pagemap cannot be read or describes another number of bytes; it is cut at regular sizes.
    but: names of files that are left out, too
    """
    return {each.pages: [*cut(each.runs, most)] for each in pagemaps(folder, but=but)}


def cut(runs: Sequence[Span], most: int) -> Iterator[int]:
    """Yields the bytes of the chunk of each window of `most` addresses, in the order of the file."""
    return (sum(size for _, size in parts) for parts in windows_of(runs, most))


def windows_of(runs: Iterable[Span], most: int) -> Iterator[Sequence[Span]]:
    """Yields the parts of the runs that are in each window of `most` addresses. `runs`: in the order of addresses."""
    return ([*parts] for _, parts in groupby(_parts(runs, most), lambda part: part[0] // most))


def _parts(runs: Iterable[Span], most: int) -> Iterator[Span]:
    """Yields the runs, cut at the borders of windows."""
    for address, size in runs:
        end = address + size
        while address < end:
            after = min(end, (address // most + 1) * most)
            yield address, after - address
            address = after
