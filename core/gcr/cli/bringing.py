"""CRIU's files of an image come into a folder, each byte compared with its name; the rest is kept for the processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gcr.criu import aside, zeropages
from gcr.criu.aside import Aside
from gcr.criu.pagemap import PAGE
from gcr.image.disk.bounce import huge_buffer
from gcr.image.read.folder import bring_file, bring_folder
from gcr.image.read.reader import ImageReader, Span
from gcr.listing import listed
from gcr.memory.hostmemory import available_host_bytes

_MARGIN = 2  # times the bytes that are kept: the processes have them, too, before they go


def bring(reader: ImageReader, folder: Path, first: Callable[[], object] = lambda: None) -> Sequence[Aside]:
    """Makes CRIU's files in a folder, each byte compared, but for pages of zeros that CRIU need not restore.

    first: called once all files are there but those of pages
    Returns the memory that is in none of them, compared as well: `aside.fill` writes it to the processes. Where there
    is too little room for that CRIU restores all. A file that is there was brought before, by the same reader.
    Raises Damaged, StoreUnusable and others of the store, OSError.
    """
    pages = {name for name in reader.files if name.startswith("pages-")}
    bring_folder(reader, folder, reader.files.keys() - pages - {each.name for each in listed(folder)})
    first()
    spare = zeropages.spare(folder, lambda name: reader.files[name][1].bytes if name in pages else -1)
    left = {name: [*reader.zeros(name, each.spans, PAGE)] for name, each in spare.items()}
    kept = _that_fit(aside.spared(folder, [each.leave_out(left[name]) for name, each in spare.items()]))
    for name in pages - {each.pagemap.pages for each in kept}:
        bring_file(reader, name, folder, left.get(name, ()))
    return [_kept(reader, each, folder, left.get(each.pagemap.pages, ())) for each in kept]


def _that_fit(found: Sequence[aside.Spared]) -> Sequence[aside.Spared]:
    return found if _MARGIN * sum(each.size for each in found) <= available_host_bytes() else ()


def _kept(reader: ImageReader, found: aside.Spared, folder: Path, left: Sequence[Span]) -> Aside:
    memory = huge_buffer(found.size)[: found.size]
    reader.read_file(found.pagemap.pages, memory, left)
    return found.divide(folder, memory)
