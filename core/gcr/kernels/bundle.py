"""Offload bundles of clang, which HIP programs carry: a list of code objects by target, plain or compressed as a whole.

A section `.hip_fatbin` holds one or several of them, with zeros between.
"""

import struct
from collections.abc import Iterator

from gcr.kernels import decompress, elf
from gcr.kernels.codeobject import read_code_object
from gcr.kernels.model import Form, Image
from gcr.kernels.span import Span

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
_COUNT = struct.Struct("<24xQ")
_ENTRY = struct.Struct("<QQQ")  # offset, bytes, bytes of the target's name, which follows
_COMPRESSED = struct.Struct("<4xHH")  # version, method
# What follows by version: bytes of the whole bundle where stated, bytes when not compressed, and a hash.
_SIZES = {1: struct.Struct("<8xIQ"), 2: struct.Struct("<8xIIQ"), 3: struct.Struct("<8xQQQ")}
_METHODS = {0: decompress.deflate, 1: decompress.zstd}
_MOST_ENTRIES = 1024


def read_bundles(section: Span) -> Iterator[Image]:
    """Images of all bundles that stand one after another. Raises MalformedFile, FileTooLarge."""
    at = section.skip_zeros(0)
    while at < section.size:
        rest = section.part(at, section.size - at, at)
        if rest.head(len(COMPRESSED)) == COMPRESSED:
            plain, length = _decompressed(rest)
            yield from _read(plain)[0]
        else:
            images, length = _read(rest)
            yield from images
        at = section.skip_zeros(at + length)


def _decompressed(bundle: Span) -> tuple[Span, int]:
    """The bundle inside, and the length of this one. Version 1 does not state it: it is the last of its section."""
    version, method = bundle.fields(_COMPRESSED)
    if version not in _SIZES or method not in _METHODS:
        raise bundle.malformed(f"a compressed bundle of version {version}, method {method}")
    layout = _SIZES[version]
    *stated, size, _hash = bundle.fields(layout)
    length = stated[0] if stated else bundle.size
    payload = bundle.read(layout.size, length - layout.size)
    return Span.of(_METHODS[method](payload, size), bundle.place), length


def _read(bundle: Span) -> tuple[list[Image], int]:
    """Images of one plain bundle, and its length."""
    if bundle.head(len(MAGIC)) != MAGIC:
        raise bundle.malformed("no offload bundle where one should begin")
    parts = list(_parts(bundle))
    end = max((content.start + content.size - bundle.start for _, content in parts), default=0)
    return [_image(target, content) for target, content in parts if content.size], max(end, _COUNT.size)


def _parts(bundle: Span) -> Iterator[tuple[str, Span]]:
    (count,) = bundle.fields(_COUNT)
    if count > _MOST_ENTRIES:
        raise bundle.malformed(f"a bundle of {count} entries")
    at = _COUNT.size
    for index in range(count):
        offset, size, length = bundle.fields(_ENTRY, at)
        target = bundle.read(at + _ENTRY.size, length).decode("utf-8", "replace")
        at += _ENTRY.size + length
        yield target, bundle.part(offset, size, index)


def _image(target: str, content: Span) -> Image:
    if content.head(len(elf.MAGIC)) == elf.MAGIC:
        found = elf.read_elf(content)
        if found.machine is elf.Machine.AMDGPU:
            return read_code_object(found, content.place)
    return Image(content.place, Form.UNREAD, target, note="not an AMD code object")
