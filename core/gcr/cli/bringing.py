"""CRIU's files of an image come into a folder, each byte compared with its name."""

from pathlib import Path

from gcr.criu import aside, zeropages
from gcr.criu.pagemap import PAGE
from gcr.image.read.folder import bring_file, bring_folder
from gcr.image.read.reader import ImageReader
from gcr.listing import listed


def bring(reader: ImageReader, folder: Path) -> None:
    """Makes CRIU's files in a folder, each byte compared, but for pages of zeros that CRIU need not restore.

    A file that is there was brought before, by the same reader. Raises Damaged, StoreUnusable and others of the store.
    """
    pages = {name for name in reader.files if name.startswith("pages-")}
    bring_folder(reader, folder, reader.files.keys() - pages - {each.name for each in listed(folder)})
    spare = zeropages.spare(folder, lambda name: reader.files[name][1].bytes if name in pages else -1)
    bring_folder(reader, folder, pages - spare.keys())
    for name, each in spare.items():
        each.leave_out(bring_file(reader, name, folder, each.spans, PAGE))
    aside.put_aside(folder)
