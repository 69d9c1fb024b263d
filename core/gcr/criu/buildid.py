"""Build ids of ELF files: a linker's name for a program's or a library's content."""

import os
import struct

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_NOTES = 4  # PT_NOTE
_BUILD_ID, _OWNER = 3, b"GNU\0"
_MOST_BYTES = 1 << 16  # of a segment of notes; those of linkers have some hundred


def build_id(fd: int) -> bytes:
    """Returns the build id of the file; empty for one that has none, or is no ELF file of 64 bits. Raises OSError."""
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        return b""
    fields = _HEADER.unpack(header)
    start, each, count = fields[5], fields[9], fields[10]
    table = os.pread(fd, each * count, start) if each >= _SEGMENT.size else b""
    for at in range(0, len(table) - _SEGMENT.size + 1, each or 1):
        type, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(table, at)
        if type == _NOTES and (found := _among(os.pread(fd, min(size, _MOST_BYTES), offset))):
            return found
    return b""


def _among(notes: bytes) -> bytes:
    at = 0
    while at + _NOTE.size <= len(notes):
        owner, size, type = _NOTE.unpack_from(notes, at)
        name = at + _NOTE.size
        value = name + _aligned(owner)
        if type == _BUILD_ID and notes[name : name + owner] == _OWNER:
            return notes[value : value + size]
        at = value + _aligned(size)
    return b""


def _aligned(length: int) -> int:
    return (length + 3) & ~3
