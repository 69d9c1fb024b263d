"""Brings the files of an image to a folder, where CRIU reads them."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gcr.image.read.filepart import FilePart, Unwritten
from gcr.image.read.reader import ImageReader, Span

_SMALL, _TOGETHER = 256 << 10, 8 << 20  # bytes of a file, and of those that are read together


def bring_folder(reader: ImageReader, folder: Path, names: Collection[str] | None = None) -> None:
    """Makes files of the image, all by default, in the folder, which is the caller's alone.

    Small files are read together: one by one, each takes 0.3 ms. Every byte was compared when it returns. Raises as
    `bring_file`.
    """
    wanted = {name: file.bytes for name, (_, file) in reader.files.items() if names is None or name in names}
    small = [name for name, size in wanted.items() if size <= _SMALL]
    for some in _in_order(small, wanted):
        for name, content in reader.read_files(some).items():
            with _made(folder / name) as made:
                FilePart(made, 0, len(content)).write([content])
    for name in wanted.keys() - {*small}:
        bring_file(reader, name, folder)


def _in_order(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """Yields the names in the image's order, so many that their files have _TOGETHER bytes at most."""
    some, size = list[str](), 0
    for name in names:
        if size + sizes[name] > _TOGETHER:
            yield some
            some, size = [], 0
        some.append(name)
        size += sizes[name]
    if some:
        yield some


def put_files(contents: Mapping[str, bytes], folder: Path) -> None:
    """Makes files of the image that were read before, in the folder, which is the caller's alone. Raises OSError."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def bring_file(reader: ImageReader, name: str, folder: Path, left: Sequence[Span] = ()) -> None:
    """Makes a file without the spans that are `left` out, which are chunks of zeros. Other zeros are holes.

    Raises Damaged, StoreUnusable; FileExistsError, and OSError where the folder's file system is full.
    """
    size = reader.files[name][1].bytes - sum(end - begin for begin, end in left)
    with _made(folder / name) as made:
        os.ftruncate(made, size)
        reader.write_file(name, made, left)


@contextmanager
def _made(path: Path) -> Iterator[int]:
    """Makes a file, open within the block. Raises FileExistsError, OSError, and the error of an Unwritten."""
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield made
    except Unwritten as failed:
        raise failed.error from failed
    finally:
        os.close(made)
