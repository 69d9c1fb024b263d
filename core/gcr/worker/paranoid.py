"""The comparison of --paranoid: bytes that the hashes call equal are read from the device again.

The program stands still meanwhile. A difference is no collision but a fault.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence

from gcr.drain import Span
from gcr.imageerrors import BROKEN, HashMissed
from gcr.memory.layout import Segment
from gcr.worker.hostcopy import HostCopy
from gcr.worker.live import Part, addresses
from gcr.worker.telling import Telling, wait_all

SCRATCH_BYTES = 64 << 20

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def compare(
    copy: HostCopy,
    parts: Mapping[int, Sequence[Part]],
    offsets: Mapping[int, int],
    segments: Sequence[Segment],
    end: float,
) -> None:
    """Compares parts of allocations with their bytes in the arena. Raises HashMissed, NoRoom, DeadlinePassed."""
    if not any(parts.values()):
        return
    scratch = copy.arena.take(copy.owner, SCRATCH_BYTES)
    try:
        room = scratch.parts[0]
        for id, start, size in _pieces(parts, room.size):
            _read(copy, id, start, Span(0, room.address, size), end)
            at = room.address
            for address, length in addresses(offsets[id] + start, size, segments):
                if _memcmp(at, address, length):
                    text = f"bytes {start} to {start + size} of allocation {id} differ from what was copied"
                    raise HashMissed(f"{text}, and their hashes are the same", hint=BROKEN)
                at += length
    finally:
        copy.arena.give_back(scratch)


def _read(copy: HostCopy, id: int, start: int, span: Span, end: float) -> None:
    memory = copy.memory
    with copy.lock, memory.lock:
        (device,) = (where.address + where.offsets[id] for where in memory.ranges if id in where.offsets)
        transfers = [memory.drain.read([Span(device + start, span.host, span.size)])]
        copy.began(transfers)
    wait_all(Telling(transfers, lambda _report: None), end)
    copy.ended(transfers)


def _pieces(parts: Mapping[int, Sequence[Part]], limit: int) -> Iterator[tuple[int, int, int]]:
    for id, each in parts.items():
        for start, size in each:
            for at in range(start, start + size, limit):
                yield id, at, min(limit, start + size - at)
