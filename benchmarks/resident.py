"""Memory that stays on the device while its job is suspended: how soon the job is back, and how soon there is room."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import testbed
from program import Program, gcr

CYCLES = 10
SETTLE_SECONDS = 20.0
KEEP = "--resident"
OUT = ("bytes", "vram_free_s", "vram_after_bytes", "resident_bytes", "stop_s", "control_s", "phases_s", "cli_wall_s")
BACK = ("total_s", "refill_s", "control_s", "resident_bytes", "phases_s", "cli_wall_s")
Row = dict[str, Any]


def measure(
    command: Sequence[str],
    cycles: int = CYCLES,
    settle: float = SETTLE_SECONDS,
    run_flags: Sequence[str] = (),
    used: Callable[[], int] = testbed.used_bytes,
) -> Iterator[Row]:
    """Ways back in turns, of one program: from resident memory, from the host, and from memory that made room.

    Each result has `kept`, `plain` and `freed`: rows of a checkpoint and its restore. run_flags: of `gcr run` · used:
    bytes in use on the device, by its own count
    """
    ways: dict[str, list[Row]] = {"kept": [], "plain": [], "freed": []}
    with Program(command, job="resident", flags=run_flags) as program:
        before = program.ask()
        time.sleep(max(0.0, settle - (time.monotonic() - program.started)))
        for _ in range(cycles):
            ways["kept"].append(_cycle(program, before, used, KEEP))
            ways["plain"].append(_cycle(program, before, used))
            ways["freed"].append(_freed(program, before, used))
            yield ways


def _cycle(program: Program, before: str, used: Callable[[], int], *flags: str) -> Row:
    held = used()
    out = gcr("checkpoint", str(program.job), *flags)
    left = held - used()
    return {**_facts("out", OUT, out), "device_freed": left, **_back(program, before)}


def _freed(program: Program, before: str, used: Callable[[], int]) -> Row:
    """Suspends the job with resident memory, then frees that: `room_s`, as a caller sees it."""
    held = used()
    gcr("checkpoint", str(program.job), KEEP)
    room = gcr("checkpoint", str(program.job))
    return {"room_s": room["cli_wall_s"], "device_freed": held - used(), **_back(program, before)}


def _back(program: Program, before: str) -> Row:
    back = gcr("restore", str(program.job))
    return {**_facts("in", BACK, back), "bytes_right": program.ask() == before}


def _facts(side: str, names: Sequence[str], report: Row) -> Row:
    return {f"{side}_{name}": report.get(name) for name in names}
