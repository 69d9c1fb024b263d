"""Opens a file, finds out what it is, and hands it to the reader of that format."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gcr.kernels import bundle, elf, fatbin
from gcr.kernels.codeobject import read_code_object
from gcr.kernels.cubin import read_cubin
from gcr.kernels.errors import CannotRead, UnknownFormat
from gcr.kernels.model import Image
from gcr.kernels.ptx import looks_like_ptx, read_ptx
from gcr.kernels.span import Span

# Sections of executables and shared objects that hold device code.
_SECTIONS = {
    ".nv_fatbin": fatbin.read_fatbins,
    "__nv_relfatbin": fatbin.read_fatbins,
    ".hip_fatbin": bundle.read_bundles,
}
_HEAD = 4096


def inspect_file(path: Path) -> tuple[Image, ...]:
    """Every image of device code in a file; empty for a host program that has none.

    Raises CannotRead, UnknownFormat, MalformedFile, FileTooLarge, LibraryMissing.
    """
    try:
        with _opened(path) as stream:
            return tuple(_images(Span(stream, 0, os.fstat(stream.fileno()).st_size)))
    except OSError as error:
        raise CannotRead(f"{path}: {error.strerror or error}") from error


def _opened(path: Path) -> BinaryIO:
    """Does not wait for a writer if it is a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        stream.close()
        raise CannotRead(f"{path}: not a regular file")
    return stream


def _images(file: Span) -> Iterable[Image]:
    head = file.head(_HEAD)
    if head.startswith(elf.MAGIC):
        return _of_elf(file)
    if head.startswith(fatbin.MAGIC):
        return fatbin.read_fatbins(file)
    if head.startswith((bundle.MAGIC, bundle.COMPRESSED)):
        return bundle.read_bundles(file)
    if looks_like_ptx(head):
        return (read_ptx(file),)
    raise UnknownFormat("not a cubin, fat binary, PTX, AMD code object, offload bundle, executable or shared object")


def _of_elf(file: Span) -> Iterator[Image]:
    found = elf.read_elf(file)
    if found.machine is elf.Machine.CUDA:
        yield read_cubin(found, file.place)
    elif found.machine is elf.Machine.AMDGPU:
        yield read_code_object(found, file.place)
    else:
        for section in found.sections:
            if section.name in _SECTIONS:
                whole = section.content
                yield from _SECTIONS[section.name](whole.part(0, whole.size, section.name))
