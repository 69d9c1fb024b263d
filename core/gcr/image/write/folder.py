"""Adds the files of a folder to an image: those in which CRIU saved a process tree."""

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gcr.image.files.imagedfile import ImagedFile
from gcr.image.write.writer import ImageWriter
from gcr.listing import listed

_NOT_OF_THE_IMAGE = (".log",)


def add_folder(writer: ImageWriter, folder: Path, sizes: Mapping[str, Sequence[int]]) -> Sequence[ImagedFile]:
    """Adds all files but logs, and returns them for the manifest. `sizes`: of the chunks of some files, by name.

    They must not change meanwhile. Raises StoreUnusable, OSError.
    """
    names = [each.name for each in listed(folder) if each.suffix not in _NOT_OF_THE_IMAGE]
    return tuple(_add(writer, folder / name, sizes.get(name, ())) for name in names)


def _add(writer: ImageWriter, path: Path, sizes: Sequence[int]) -> ImagedFile:
    with path.open(
        "r+b"
    ) as file:  # nothing is written; bytes that may not be written to are copied before they are hashed
        found = ImagedFile(path.name, os.fstat(file.fileno()).st_size, tuple(sizes))
        if found.bytes:  # an empty file cannot be mapped, and has no chunks
            writer.add_file(found, memoryview(mmap.mmap(file.fileno(), found.bytes)))
    return found
