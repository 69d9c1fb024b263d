"""Adds the files of a folder to an image: those in which CRIU saved a process tree."""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
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
    added = list[ImagedFile]()

    def noted() -> Iterator[tuple[ImagedFile, memoryview]]:
        for name in names:
            file, memory = _mapped(folder / name, sizes.get(name, ()))
            added.append(file)
            if file.bytes:
                yield file, memory

    writer.add_files(noted())
    return tuple(added)


def _mapped(path: Path, sizes: Sequence[int]) -> tuple[ImagedFile, memoryview]:
    """Maps a file for writing, though it is only read: bytes that may not be written are copied before a hash."""
    with path.open("r+b") as file:
        found = ImagedFile(path.name, os.fstat(file.fileno()).st_size, tuple(sizes))
        if not found.bytes:  # an empty file cannot be mapped, and has no chunks
            return found, memoryview(b"")
        return found, memoryview(mmap.mmap(file.fileno(), found.bytes))
