"""The statistics that CRIU leaves in the folder of a dump or a restore.

Source: images/stats.proto and criu/include/magic.h of CRIU 4.1: two magic numbers, the length of the entry, the entry.
"""

import struct
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import messages

_HEADER = struct.Struct("<III")
_SERVICE_MAGIC, _STATS_MAGIC = 0x55105940, 0x57093306
_MICROSECONDS = 1e-6


class DumpStatistics(Struct, frozen=True):
    """Seconds that the processes stood still for CRIU, and of these for their memory; the pages that were written."""

    frozen_s: float
    memory_s: float
    pages: int


class RestoreStatistics(Struct, frozen=True):
    """Seconds of the restore, and the pages that were restored."""

    seconds: float
    pages: int


def of_dump(folder: Path) -> DumpStatistics | None:
    """Returns None where CRIU left none that can be read: by then the processes are gone, and that is no failure."""
    if not (found := _entry(folder / "stats-dump")):
        return None
    entry = found.dump
    memory = entry.memdump_time + entry.memwrite_time
    return DumpStatistics(entry.frozen_time * _MICROSECONDS, memory * _MICROSECONDS, entry.pages_written)


def of_restore(folder: Path) -> RestoreStatistics | None:
    """Returns None where CRIU left none that can be read."""
    if not (found := _entry(folder / "stats-restore")):
        return None
    entry = found.restore
    return RestoreStatistics(entry.restore_time * _MICROSECONDS, entry.pages_restored)


def _entry(path: Path) -> Any:
    try:
        data = path.read_bytes()
        magic, kind, size = _HEADER.unpack_from(data)
        if (magic, kind) != (_SERVICE_MAGIC, _STATS_MAGIC):
            return None
        return messages.statistics(data[_HEADER.size :][:size])
    except (OSError, struct.error, ValueError):
        return None
