"""Brings the files of an image to a folder, where CRIU reads them."""

import mmap
import os
from pathlib import Path

from gcr.image.files.imagedfile import ImagedFile
from gcr.image.read.reader import ImageReader


def bring_folder(reader: ImageReader, folder: Path) -> None:
    """Makes each file of the image in the folder, which is the caller's alone. Every byte was compared when it returns.

    Raises Damaged, StoreUnusable; FileExistsError, and OSError where the folder's file system is full.
    """
    for _, file in reader.files.values():
        _bring(reader, file, folder / file.name)


def _bring(reader: ImageReader, file: ImagedFile, path: Path) -> None:
    made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not file.bytes:
            return
        os.posix_fallocate(made, 0, file.bytes)  # no room is an error here, and a signal where it is written
        reader.read_file(file.name, memoryview(mmap.mmap(made, file.bytes)))
    finally:
        os.close(made)
