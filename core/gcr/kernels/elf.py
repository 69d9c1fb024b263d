"""Sections of an ELF file, by pyelftools."""

import errno
import io
import struct
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from gcr.kernels.libraries import library
from gcr.kernels.span import Span

MAGIC = b"\x7fELF"
_MOST_SECTIONS = 1 << 20
_LONGEST_NAME = 1 << 16
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_NOTE = struct.Struct("<III")  # bytes of the name, bytes of the content, type


class Machine(Enum):
    CUDA = auto()
    AMDGPU = auto()
    OTHER = auto()


class Section(Struct, frozen=True):
    name: str
    type: str | int  # as pyelftools names it; the number where it has no name
    link: int
    offset: int
    size: int
    file: Span

    @property
    def content(self) -> Span:
        """Raises MalformedFile. Only asked of sections that are in the file: vendors have types that take no room."""
        return self.file.part(self.offset, self.size)


class Elf(Struct, frozen=True):
    machine: Machine
    wide: bool  # 64-bit, little-endian
    abi_version: int
    flags: int
    sections: tuple[Section, ...]

    def named(self, name: str) -> Iterator[Section]:
        return (section for section in self.sections if section.name == name)

    def of_type(self, kind: str) -> Iterator[Section]:
        return (section for section in self.sections if section.type == kind)


def read_elf(span: Span) -> Elf:
    """Raises MalformedFile."""
    # Its own error is not all that a malformed file makes pyelftools raise, the less so in older releases.
    errors = library("elftools.common.exceptions").ELFError, ArithmeticError, AttributeError, LookupError
    try:
        return _read(span)
    except (*errors, RuntimeError, TypeError, ValueError) as error:
        raise span.malformed(f"not a well-formed ELF file: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to where no file can be
            raise
        raise span.malformed("not a well-formed ELF file: an offset beyond all files") from error


def _read(span: Span) -> Elf:
    whole = span.stream if span.start == 0 else io.BytesIO(span.whole())
    whole.seek(0)
    elf = library("elftools.elf.elffile").ELFFile(whole)
    if elf.num_sections() > _MOST_SECTIONS:
        raise ValueError(f"{elf.num_sections()} sections")
    machine = {"EM_CUDA": Machine.CUDA, "EM_AMDGPU": Machine.AMDGPU}.get(elf["e_machine"], Machine.OTHER)
    wide = elf.elfclass == 64 and elf.little_endian
    sections = tuple(_sections(elf, span))
    return Elf(machine, wide, elf["e_ident"]["EI_ABIVERSION"], elf["e_flags"], sections)


def _sections(elf: Any, span: Span) -> Iterator[Section]:
    for section in elf.iter_sections():
        place = (section["sh_link"], section["sh_offset"], section["sh_size"])
        yield Section(section.name, section["sh_type"], *place, span)


def symbols(elf: Elf, bit: int) -> Iterator[str]:
    """Yields the names of symbols that have `bit` in `st_other`: pyelftools drops the bits that belong to vendors."""
    for table in elf.of_type("SHT_SYMTAB"):
        if table.link >= len(elf.sections):
            raise table.file.malformed("a symbol table without names")
        names = elf.sections[table.link].content.whole()
        for name, _info, other, *_rest in table.content.records(_SYMBOL):
            if other & bit:
                yield _string(names, name)


def _string(names: bytes, start: int) -> str:
    return names[start : start + _LONGEST_NAME].partition(b"\0")[0].decode("utf-8", "replace")


def notes(content: Span) -> Iterator[tuple[bytes, int, Span]]:
    """Owner, type and content of each note in a section; both parts are padded to four bytes."""
    at = 0
    while at + _NOTE.size <= content.size:
        name_size, size, kind = content.fields(_NOTE, at)
        start = at + _NOTE.size + _padded(name_size)
        yield content.read(at + _NOTE.size, name_size).rstrip(b"\0"), kind, content.part(start, size)
        at = start + _padded(size)


def _padded(size: int) -> int:
    return (size + 3) & ~3
