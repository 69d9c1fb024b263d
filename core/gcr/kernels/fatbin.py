"""CUDA fat binaries: a header, then entries, each with PTX or a cubin, plain or compressed.

     0           8                16
     +-----------+----------------+----------------------- - - -
     | magic ... | bytes that     | entry, entry, ...
     |           | follow         |
     +-----------+----------------+----------------------- - - -

A section `.nv_fatbin` holds one or several of them, with zeros between.
"""

import struct
from collections.abc import Iterator

from gcr.kernels import decompress
from gcr.kernels.cubin import read_cubin
from gcr.kernels.elf import Machine, read_elf
from gcr.kernels.model import Form, Image
from gcr.kernels.ptx import read_ptx
from gcr.kernels.span import Span

MAGIC = (0xBA55ED50).to_bytes(4, "little")
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
# kind, version, bytes of this header, of the payload as padded, of it when compressed; options, minor, major,
# architecture, name, bytes of the name, flags, reserved, bytes of it when not compressed
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _ELF = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000


def read_fatbins(section: Span) -> Iterator[Image]:
    """Images of all fat binaries that stand one after another. Raises MalformedFile, FileTooLarge."""
    at = section.skip_zeros(0)
    while at < section.size:
        magic, _version, header, size = section.part(at, section.size - at).fields(_HEADER)
        if magic.to_bytes(4, "little") != MAGIC or header < _HEADER.size:
            raise section.malformed(f"no fat binary at offset {at}")
        yield from _entries(section.part(at + header, size, at))
        at = section.skip_zeros(at + header + size)


def _entries(entries: Span) -> Iterator[Image]:
    at, index = 0, 0
    while at < entries.size:
        head = entries.part(at, entries.size - at, index).fields(_ENTRY)
        header, padded = head[2:4]
        if header < _ENTRY.size:
            raise entries.malformed(f"an entry with a header of {header} bytes")
        yield _image(head, entries.part(at + header, padded, index))
        at, index = at + header + padded, index + 1


def _image(head: tuple[int, ...], payload: Span) -> Image:
    kind, architecture = head[0], head[8]
    if kind not in (_PTX, _ELF):
        return Image(payload.place, Form.UNREAD, f"sm_{architecture}", note=f"an entry of kind {kind}")
    content = _decompressed(head, payload)
    if kind == _PTX:
        return read_ptx(content)
    elf = read_elf(content)
    if elf.machine is not Machine.CUDA:
        raise payload.malformed("an ELF entry that is no cubin")
    return read_cubin(elf, payload.place)


def _decompressed(head: tuple[int, ...], payload: Span) -> Span:
    flags, size = head[11], head[13]
    unpack = decompress.zstd if flags & _ZSTD else decompress.lz4_block if flags & _LZ4 else None
    if unpack is None:
        return payload
    return Span.of(unpack(payload.read(0, head[4]), size), payload.place)
