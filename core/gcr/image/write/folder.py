"""Adds the files of a folder to an image: those in which CRIU saved a process tree."""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gcr.image.files.imagedfile import ImagedFile
from gcr.image.write.part import AddedFile
from gcr.image.write.stretches import Source
from gcr.image.write.writer import ImageWriter
from gcr.listing import listed

_NOT_OF_THE_IMAGE = (".log",)


class Content(Source, Protocol):
    """The content of a file that is elsewhere. `sizes`: of its chunks."""

    @property
    def sizes(self) -> Sequence[int]: ...


def add_folder(
    writer: ImageWriter, folder: Path, sizes: Mapping[str, Sequence[int]], elsewhere: Mapping[str, Content]
) -> Sequence[ImagedFile]:
    """Adds all files but logs, and returns them for the manifest. `sizes`: of the chunks of some files, by name.

    elsewhere: the content of those that have another one than in the folder, by name
    They must not change meanwhile. Raises StoreUnusable, OSError, and as `elsewhere`.
    """
    names = [each.name for each in listed(folder) if each.suffix not in _NOT_OF_THE_IMAGE]
    added = list[ImagedFile]()

    def noted() -> Iterator[AddedFile]:
        for name in names:
            if there := elsewhere.get(name):
                file: AddedFile = ImagedFile(name, sum(there.sizes), tuple(there.sizes)), there
            else:
                file = _mapped(folder / name, sizes.get(name, ()))
            added.append(file[0])
            if file[0].bytes:
                yield file

    writer.add_files(noted())
    return tuple(added)


def _mapped(path: Path, sizes: Sequence[int]) -> tuple[ImagedFile, memoryview]:
    """Maps a file for writing, though it is only read: bytes that may not be written are copied before a hash."""
    with path.open("r+b") as file:
        found = ImagedFile(path.name, os.fstat(file.fileno()).st_size, tuple(sizes))
        if not found.bytes:  # an empty file cannot be mapped, and has no chunks
            return found, memoryview(b"")
        return found, memoryview(mmap.mmap(file.fileno(), found.bytes))
