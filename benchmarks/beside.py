"""The driver's own checkpoint of a program that holds hardly more than a context: alone, and beside other work.

`copies`: beside copies of another process, by how these are queued. `at_once`: several programs at once, on the first
device and on one device each; and one that leaves while another comes back. No part of gcr takes part.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from link import DOWN, UP
from program import Program
from stats import median
from swaps import driver_helper

from gcr_nvidia import devices

HERE = Path(__file__).resolve().parent
PROGRAM = (sys.executable, str(HERE / "control_program.py"))
CYCLES = 5  # the first is not counted
MIB = 1 << 20
SIZE = 2048 * MIB  # pinned by the copier
MOST = 4  # programs on one device
CHUNKS: Mapping[str, tuple[int, int]] = {  # bytes, and how many are in flight
    "256 MiB, four queued": (256 * MIB, 4),
    "64 MiB, one": (64 * MIB, 1),
    "16 MiB, one": (16 * MIB, 1),
    "16 MiB, two": (16 * MIB, 2),
    "4 MiB, one": (4 * MIB, 1),
}
Row = dict[str, Any]
Call = Callable[[str], float]  # a step of the driver, for one program; returns seconds


@contextmanager
def programs(visible: Sequence[str | None]) -> Iterator[Sequence[Call]]:
    """Yields the driver's steps for programs that see these devices; None: all of them."""
    with ExitStack() as stack:
        found: list[Call] = []
        for device in visible:
            environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            program = stack.enter_context(Program(PROGRAM, None, environment))
            call, pid = stack.enter_context(driver_helper()), program.pid
            found.append(lambda step, call=call, pid=pid: float(call(step, pid)))
        yield found


def out(call: Call) -> float:
    return call("lock") + call("checkpoint")


def back(call: Call) -> float:
    return call("restore") + call("unlock")


# ---- beside copies ----------------------------------------------------------------------------------------------


class Copier:
    """A process that copies all the time between `go` and `stop`."""

    def __init__(self, size: int) -> None:
        words = [sys.executable, str(HERE / "beside_copier.py"), str(size)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._heard("ready")

    def go(self, way: str, chunk: int, depth: int) -> None:
        self._say(f"go {way} {chunk} {depth}")
        self._heard("going")

    def stop(self) -> float:
        """Returns the bytes per second since `go`."""
        self._say("stop")
        copied, seconds = self._line().split()
        return int(copied) / float(seconds)

    def __enter__(self) -> "Copier":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _heard(self, word: str) -> None:
        if (said := self._line()) != word:
            raise SystemExit(f"benchmark: the copier said {said!r} instead of {word}")


def copies(cycles: int = CYCLES, size: int = SIZE, chunks: Mapping[str, tuple[int, int]] = CHUNKS) -> Iterator[Row]:
    """Yields what is known so far: seconds of the driver out and back, and the copier's rate meanwhile and alone."""
    known: Row = {}
    with programs([None]) as (call,), Copier(size) as copier:
        known["none"] = _medians([{"out_s": out(call), "in_s": back(call)} for _ in range(cycles)])
        yield known
        for name, how in chunks.items():
            rows = [_beside(call, copier, *how) for _ in range(cycles)]
            known[name] = {**_medians(rows), **_alone(copier, *how)}
            yield known


def _beside(call: Call, copier: Copier, chunk: int, depth: int) -> Row:
    row: Row = {}
    for way, step, name in ((DOWN, out, "out"), (UP, back, "in")):
        copier.go(way, chunk, depth)
        row[f"{name}_s"] = step(call)
        row[f"{name}_bytes_per_s"] = copier.stop()
    return row


def _alone(copier: Copier, chunk: int, depth: int, seconds: float = 0.5) -> Row:
    found: Row = {}
    for way in (DOWN, UP):
        copier.go(way, chunk, depth)
        time.sleep(seconds)
        found[f"alone_{way}_bytes_per_s"] = copier.stop()
    return found


# ---- several at once --------------------------------------------------------------------------------------------


def at_once(cycles: int = CYCLES) -> Iterator[Row]:
    """Yields what is known so far, by the number of programs and where they are."""
    known: Row = {}
    there = [str(number) for number in range(len(devices.handles()))]
    places = {f"{count} on one device": ["0"] * count for count in (1, 2, MOST)}
    if len(there) > 1:
        places[f"{len(there)}, one a device"] = there
    for name, visible in places.items():
        with programs(visible) as calls:
            known[name] = _medians([_together(calls) for _ in range(cycles)])
        yield known
    with programs(["0", "0"]) as calls:
        known["one leaves, one comes back"] = _medians(list(_crossing(calls, cycles)))
    yield known


def _together(calls: Sequence[Call]) -> Row:
    with ThreadPoolExecutor(len(calls)) as pool:
        away = list(pool.map(out, calls))
        there = list(pool.map(back, calls))
    return {"out_s": max(away), "in_s": max(there)}


def _crossing(calls: Sequence[Call], cycles: int) -> Iterator[Row]:
    """One program is away at a time; in each cycle the two change places at once."""
    first, second = calls
    out(second)
    for _ in range(cycles):
        with ThreadPoolExecutor(2) as pool:
            leaving, coming = pool.submit(out, first), pool.submit(back, second)
            yield {"out_s": leaving.result(), "in_s": coming.result()}
        first, second = second, first
    back(second)


def _medians(rows: Sequence[Row]) -> Row:
    counted = rows[1:] or rows
    return {"rows": list(rows), **{name: median([row[name] for row in counted]) for name in counted[0]}}
