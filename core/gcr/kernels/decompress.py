"""Decompression to a size that is stated beforehand and never exceeded."""

import zlib

from gcr.kernels.errors import FileTooLarge, MalformedFile
from gcr.kernels.libraries import library
from gcr.kernels.span import LARGEST

_STEP = 1 << 20


def lz4_block(content: bytes, size: int) -> bytes:
    """A bare LZ4 block. `size` is bytes; raises MalformedFile unless exactly that many come out, FileTooLarge."""
    block = library("lz4.block")
    _check(size)
    try:
        return _exactly(block.decompress(content, uncompressed_size=size), size)
    except block.LZ4BlockError as error:
        raise MalformedFile(f"LZ4: {error}") from error


def zstd(content: bytes, size: int) -> bytes:
    """The first zstd frame; what the frame itself says of its size is not believed."""
    module = library("zstandard")
    _check(size)
    found = bytearray()
    try:
        with module.ZstdDecompressor(max_window_size=LARGEST).stream_reader(content) as reader:
            while len(found) <= size and (chunk := reader.read(_STEP)):
                found += chunk
    except module.ZstdError as error:
        raise MalformedFile(f"zstd: {error}") from error
    return _exactly(bytes(found), size)


def deflate(content: bytes, size: int) -> bytes:
    """A zlib stream."""
    _check(size)
    try:
        return _exactly(zlib.decompressobj().decompress(content, size + 1), size)
    except zlib.error as error:
        raise MalformedFile(f"zlib: {error}") from error


def _check(size: int) -> None:
    if size > LARGEST:
        raise FileTooLarge(f"{size} bytes when decompressed, the limit is {LARGEST}")


def _exactly(found: bytes, size: int) -> bytes:
    if len(found) != size:
        raise MalformedFile(f"decompresses to another size than the {size} bytes that its header states")
    return found
