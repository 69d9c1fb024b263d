"""Remembers for a while that CRIU works here: a look starts it three times, 0.1 s of a core, in each save and return.

The note in gcr's runtime directory counts for the same program, kernel, privileges and namespaces, for KNOWN_S at most.
Where CRIU cannot do any more what it could then, the dump itself fails, and is taken back. A failure is not remembered.
"""

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode

from gcr.criu import program
from gcr.criu.program import Criu
from gcr.errors import UnsafeRuntime
from gcr.runtime import runtime_dir

log = logging.getLogger("gcr.criu")

KNOWN_S = 3600.0
_NOTE = "criu.json"
_BOOT, _STATUS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/status")
_NAMESPACES = ("user", "mnt", "pid", "net", "time")


class _Note(Struct, frozen=True):
    """`at`: seconds since the epoch · `place`: as `_place` returns."""

    at: float
    place: tuple[str, ...]
    version: tuple[int, int, int]
    tracks: bool
    lazy: bool


def look(found: Path) -> Criu:
    """Returns as `program.look`, from the note where that counts. Raises as `program.look`."""
    try:
        note, place = runtime_dir() / _NOTE, _place(found)
    except (OSError, UnsafeRuntime):
        return program.look(found)
    if known := _read(note, place):
        return Criu(found, known.version, known.tracks, known.lazy)
    seen = program.look(found)
    _write(note, _Note(time.time(), place, seen.version, seen.tracks, seen.lazy))
    return seen


def _place(found: Path) -> tuple[str, ...]:
    """Returns what an answer of CRIU's depends on. Raises OSError."""
    file, kernel = found.resolve(strict=True), os.uname()
    stat = file.stat()
    numbers = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, os.getuid()
    spaces = (str(Path("/proc/self/ns", name).readlink()) for name in _NAMESPACES)
    rights = re.findall(r"^(?:CapEff|CapBnd|Seccomp|NoNewPrivs):.*$", _STATUS.read_text(), re.MULTILINE)
    return str(file), kernel.release, kernel.machine, _BOOT.read_text(), *map(str, numbers), *spaces, *rights


def _read(note: Path, place: tuple[str, ...]) -> _Note | None:
    with suppress(OSError, MsgspecError):
        known = decode(note.read_bytes(), type=_Note)
        if known.place == place and 0 <= time.time() - known.at < KNOWN_S:
            return known
    return None


def _write(path: Path, note: _Note) -> None:
    """Writes the note, whole or not at all. Raises nothing: it only spares time."""
    new = path.with_suffix(f".{os.getpid()}")
    try:
        new.write_bytes(encode(note))
        new.replace(path)
    except OSError as error:
        log.info("it is not noted that CRIU works here: %s", error)
        with suppress(OSError):
            new.unlink()
