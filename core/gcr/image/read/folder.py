"""Brings the files of an image to a folder, where CRIU reads them."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gcr.image.read.filepart import Unwritten
from gcr.image.read.reader import ImageReader, Span


def bring_folder(reader: ImageReader, folder: Path, names: Collection[str] | None = None) -> None:
    """Makes files of the image, all by default, in the folder, which is the caller's alone.

    Every byte was compared when it returns. Raises as `bring_file`.
    """
    for name in reader.files if names is None else names:
        bring_file(reader, name, folder)


def put_files(contents: Mapping[str, bytes], folder: Path) -> None:
    """Makes files of the image that were read before, in the folder, which is the caller's alone. Raises OSError."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def bring_file(reader: ImageReader, name: str, folder: Path, left: Sequence[Span] = ()) -> None:
    """Makes a file without the spans that are `left` out, which are chunks of zeros. Other zeros are holes.

    Raises Damaged, StoreUnusable; FileExistsError, and OSError where the folder's file system is full.
    """
    size = reader.files[name][1].bytes - sum(end - begin for begin, end in left)
    made = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(made, size)
        reader.write_file(name, made, left)
    except Unwritten as failed:
        raise failed.error from failed
    finally:
        os.close(made)
