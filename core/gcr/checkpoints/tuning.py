"""Chooses how a training saves: threads, chunk size, saves in flight, and the interval in steps. It measures nothing.

A training loses seconds to each save: it is blocked, and its steps are slower while the bytes are written. The interval
is the shortest one in which that loss is a given share of the steps, and which the disk keeps up with. One thread
writes the saves of a run one after the other. So more saves in flight make no disk faster. They let the next save be
copied while the last one is written, and bridge one that takes longer than others, each with a copy of the state in
host memory.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Literal

from msgspec import Struct

from gcr.errors import NoRoom, UsageError
from gcr.hashing.chunks import CHUNK_BYTES, check_chunk_bytes
from gcr.memory.hostmemory import available_host_bytes
from gcr.units import size

Bound = Literal["step", "blocked", "disk", "memory"]

HEADROOM = 1.05  # of an interval over the seconds that the disk takes for a save
AS_FAST = 0.95  # of the best rate: from there on fewer threads and the usual chunk size count for more
MEMORY_SHARE = 0.5  # of the host memory that is available, for copies of the state


class Rates(Struct, frozen=True):
    """Bytes a second that a way of writing reached, one figure for each time that it was measured."""

    threads: int
    chunk_bytes: int
    bytes_per_s: Sequence[float]

    @property
    def usual(self) -> float:
        return median(self.bytes_per_s)

    @property
    def undisturbed(self) -> float:
        """Returns the best figure. Other work on the machine makes a trial slower, and none faster."""
        return max(self.bytes_per_s)


class Load(Struct, frozen=True):
    """The load of a training: what it saves, and what it allows.

    save_bytes: of one save · step_s: of one step without saves · blocked_s: that a save blocks the training
    slowdown: seconds that may be lost to saves, of each second of steps · host_bytes: of memory for copies of the state
    """

    save_bytes: int
    step_s: float
    blocked_s: float
    slowdown: float
    host_bytes: int


class Choice(Struct, frozen=True):
    """The way to save that was chosen.

    every: steps from one save to the next · bound: what keeps the interval from being shorter
    write_s: seconds of writing a save, as a rule · slow_s: seconds until a save is durable, at worst
    """

    threads: int
    chunk_bytes: int
    in_flight: int
    every: int
    bound: Bound
    write_s: float
    slow_s: float


def interval(step_s: float, cost_s: float, slowdown: float, write_s: float) -> int:
    """Returns the fewest steps from one save to the next that earn its cost and give the disk its time.

    cost_s: seconds that a save costs the training · write_s: of writing it
    """
    return max(1, _steps(cost_s / slowdown, step_s), _steps(HEADROOM * write_s, step_s))


def in_flight(slow_s: float, interval_s: float, most: int) -> int:
    """Returns how many saves must be under way, so that none waits for one that takes `slow_s`; `most` or fewer."""
    return max(1, min(most, ceil(slow_s / interval_s)))


def _steps(seconds: float, step_s: float) -> int:
    return ceil(seconds / step_s)


def best(measured: Sequence[Rates]) -> Rates:
    """Returns the way to write that is about as fast as the fastest and takes the fewest threads from the training.

    Of those with as many threads it is one with the usual chunk size, else with the smallest: small chunks find more
    equal bytes.
    """
    least = AS_FAST * max(each.undisturbed for each in measured)
    near = [each for each in measured if each.undisturbed >= least]
    return min(near, key=lambda each: (each.threads, each.chunk_bytes != CHUNK_BYTES, each.chunk_bytes))


def chosen(measured: Sequence[Rates], load: Load) -> Choice:
    """Chooses by what was measured. Raises NoRoom if host memory has no room for one copy of the state."""
    most = copies(load)
    way = best(measured)
    write_s, slow_s = load.save_bytes / way.usual, load.blocked_s + load.save_bytes / min(way.bytes_per_s)
    needs: dict[Bound, int] = {
        "step": 1,
        "blocked": interval(load.step_s, load.blocked_s, load.slowdown, 0.0),
        "disk": interval(load.step_s, 0.0, load.slowdown, write_s),
        "memory": _steps(slow_s / most, load.step_s),
    }
    bound = max(needs, key=needs.__getitem__)
    every = needs[bound]
    flying = in_flight(slow_s, every * load.step_s, most)
    return Choice(way.threads, way.chunk_bytes, flying, every, bound, write_s, slow_s)


def copies(load: Load) -> int:
    """Returns how many copies of the state host memory has room for. Raises NoRoom if there is none for one."""
    if load.save_bytes <= load.host_bytes:
        return load.host_bytes // load.save_bytes
    text = f"a save of {size(load.save_bytes)} is copied to host memory first, where saves may have"
    raise NoRoom(
        f"{text} {size(load.host_bytes)}: half of what is available",
        missing=load.save_bytes - load.host_bytes,
        hint="--bytes is of one save on this machine, of all its ranks",
    )


def fitting(state_bytes: int, held: int, ranks_here: int) -> int:
    """Returns how many copies of its state each rank of this machine may have in host memory; 1 or more.

    held: bytes of copies that a rank has already
    """
    mine = MEMORY_SHARE * (available_host_bytes() / ranks_here + held)
    return max(1, int(mine // state_bytes)) if state_bytes else 1


def check_way(threads: int, chunk_bytes: int) -> None:
    """Raises UsageError for a way that no save can be written in."""
    if threads < 1:
        raise UsageError(f"threads={threads!r}: 1 or more")
    try:
        check_chunk_bytes(chunk_bytes)
    except ValueError as error:
        raise UsageError(f"chunk_bytes={chunk_bytes!r}: {error}") from error
