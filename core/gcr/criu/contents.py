"""Names of the contents of files: equal names mean equal bytes.

    build-id:…   of an ELF file that has one: its linker's name for it
    blake3:…     of any other file: BLAKE3 of the BLAKE3 digests of its pieces, which several threads read at once
    blake2b:…    the same in saves of before 2026-11-30, with larger pieces; it is only compared

A name is made of the first `size` bytes. A program stands still meanwhile: PyTorch for the CPU has 76 files of 535 MB
mapped, 24 MB of them without a build id. Their names took 0.12 s by BLAKE2b, one thread for each file.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TypeVar

from blake3 import blake3
from msgspec import Struct

from gcr.criu.buildid import build_id

FORMER = "blake2b:"
PIECE = 4 << 20  # bytes of a file that one thread reads
_FORMER_PIECE = 64 << 20
_BLOCK = 1 << 20
_MOST_THREADS = 16
_DIGEST = 32
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class Content(Struct, frozen=True):
    """The first `size` bytes of a file. `former`: its name is to be one of before."""

    path: Path
    size: int
    former: bool = False


def names(asked: Sequence[Content]) -> list[str | OSError]:
    """Returns the name of each content, or the error of one that cannot be read."""
    found = in_threads(_at_once, asked)
    pieces = [(each, at) for each, name in zip(asked, found, strict=True) if name is None for at in _places(each)]
    digests = iter(in_threads(lambda piece: _read(lambda: _digest(*piece)), pieces))
    return [
        _joined([*islice(digests, len(_places(each)))]) if name is None else name
        for each, name in zip(asked, found, strict=True)
    ]


def in_threads(ask: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> list[_Answer]:
    """Returns the answers in order. Reading and hashing run outside of the interpreter's lock."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)), len(asked))
    if threads < 2:
        return [*map(ask, asked)]
    with ThreadPoolExecutor(threads, thread_name_prefix="gcr-files") as pool:
        return [*pool.map(ask, asked)]


def _at_once(asked: Content) -> str | OSError | None:
    """Returns the name of a content, or the error of reading it. A larger content has no name yet: None."""
    return _read(lambda: _short(asked))


def _short(asked: Content) -> str | None:
    with asked.path.open("rb", buffering=0) as file:
        if name := build_id(file.fileno()):
            return f"build-id:{name.hex()}"
        if asked.former:
            return _former(file.fileno(), asked.size)
    return _named([_digest(asked, at) for at in _places(asked)]) if asked.size <= PIECE else None


def _places(asked: Content) -> range:
    return range(0, asked.size, PIECE)


def _digest(asked: Content, start: int) -> bytes:
    """Opens the file anew: there may be more of them than descriptors."""
    digest, end = blake3(), min(start + PIECE, asked.size)
    with asked.path.open("rb", buffering=0) as file:
        while start < end and (block := os.pread(file.fileno(), min(_BLOCK, end - start), start)):
            digest.update(block)
            start += len(block)
    return digest.digest()


def _joined(digests: Sequence[bytes | OSError]) -> str | OSError:
    errors = [each for each in digests if isinstance(each, OSError)]
    return errors[0] if errors else _named([each for each in digests if isinstance(each, bytes)])


def _named(digests: Sequence[bytes]) -> str:
    return f"blake3:{blake3(b''.join(digests)).hexdigest()}"


def _read(work: Callable[[], _Answer]) -> "_Answer | OSError":
    try:
        return work()
    except OSError as error:
        return error


def _former(fd: int, size: int) -> str:
    pieces = [_former_digest(fd, at, min(at + _FORMER_PIECE, size)) for at in range(0, size, _FORMER_PIECE)]
    return f"{FORMER}{blake2b(b''.join(pieces), digest_size=_DIGEST).hexdigest()}"


def _former_digest(fd: int, start: int, end: int) -> bytes:
    digest = blake2b(digest_size=_DIGEST)
    while start < end and (block := os.pread(fd, min(_BLOCK, end - start), start)):
        digest.update(block)
        start += len(block)
    return digest.digest()
