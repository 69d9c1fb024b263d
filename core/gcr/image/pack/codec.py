"""Compresses chunks without loss: zstd on byte planes. It needs the extra `compression`.

    planes in the frame (u8, one bit each) | the other planes, one behind the other | a zstd frame

Plane k has bytes k, k + 8, k + 16 … of the chunk. Numbers of 1, 2, 4 or 8 bytes lie in the planes by significance. The
exponents of floating-point numbers repeat and their mantissas do not, so most planes of weights stay as they are.
Matches of fewer than seven bytes are not looked for: in exponents they cost more than they save.

All planes of a chunk go into one frame: each call of the library lets other threads have the interpreter's lock.
"""

from functools import cache
from threading import local
from types import ModuleType
from typing import Any

from gcr.errors import LibraryMissing

PLANES = 8
_HEAD = 1  # bytes before the planes
_LOOK = 1024  # first bytes of a plane, which tell whether it repeats itself
_VALUES = 230  # so many different ones, of 256, or more: noise has 251
_WORTH = 0.95  # of the planes in the frame
_EXTRA = "compression"
_WINDOW_LOG = 24  # the largest chunk


class WrongCode(Exception):
    """Bytes are not what `encode` returns for a chunk of this size. The text says why."""


def need_library() -> ModuleType:
    """Returns the module of zstd. Raises LibraryMissing."""
    try:
        import zstandard
    except ImportError as error:
        message = f"compressed chunks need the Python module zstandard: {error}"
        raise LibraryMissing(message, hint=f"pip install 'gpu-cr[{_EXTRA}]'") from error
    return zstandard


class _Tools(local):
    """The compressor and the decompressor of a thread."""

    def __init__(self) -> None:
        zstd = need_library()
        self.compress, self.decompress = zstd.ZstdCompressor(compression_params=_parameters()), zstd.ZstdDecompressor()


@cache
def _tools() -> _Tools:
    return _Tools()


@cache
def _parameters() -> Any:
    zstd = need_library()
    return zstd.ZstdCompressionParameters(
        strategy=zstd.STRATEGY_FAST,
        window_log=_WINDOW_LOG,
        hash_log=6,
        min_match=7,
        target_length=0,
        write_content_size=True,
    )


def encode(data: bytes | memoryview) -> bytes | None:
    """Returns a chunk compressed; None where that is not worth it. Raises LibraryMissing.

    Other threads run during most of it.
    """
    data = bytes(data)
    planes = [data[number::PLANES] for number in range(PLANES)]
    repeats = [len({*plane[:_LOOK]}) < _VALUES for plane in planes]
    within = b"".join(plane for plane, repeated in zip(planes, repeats, strict=True) if repeated)
    if not within:
        return None
    frame = _tools().compress.compress(within)
    if len(frame) > _WORTH * len(within):
        return None
    mask = sum(repeated << number for number, repeated in enumerate(repeats))
    beside = [plane for plane, repeated in zip(planes, repeats, strict=True) if not repeated]
    found = b"".join([bytes([mask]), *beside, frame])
    return found if len(found) < len(data) else None


def decode(code: memoryview, size: int) -> bytearray:
    """Returns the chunk of `size` bytes; takes memory for that once more. Raises WrongCode, LibraryMissing."""
    if len(code) < _HEAD:
        raise WrongCode("it is cut off")
    repeats = [bool(code[0] >> number & 1) for number in range(PLANES)]
    sizes = [len(range(number, size, PLANES)) for number in range(PLANES)]
    frame_at = _HEAD + sum(each for each, repeated in zip(sizes, repeats, strict=True) if not repeated)
    within = _decompressed(code[frame_at:], sum(sizes) - frame_at + _HEAD)
    found, beside = bytearray(size), code[_HEAD:frame_at]
    for number, (each, repeated) in enumerate(zip(sizes, repeats, strict=True)):
        if repeated:
            found[number::PLANES], within = within[:each], within[each:]
        else:
            found[number::PLANES], beside = beside[:each], beside[each:]
    return found


def _decompressed(frame: memoryview, size: int) -> memoryview:
    zstd = need_library()
    try:
        if zstd.frame_content_size(frame) != size:  # the library would believe it
            raise WrongCode("its frame has another size")
        found: bytes = _tools().decompress.decompress(frame, max_output_size=size)
    except zstd.ZstdError as error:
        raise WrongCode(f"its frame is damaged: {error}") from error
    if len(found) != size:
        raise WrongCode("its frame has another size")
    return memoryview(found)
