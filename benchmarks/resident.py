"""Memory that stays on the device while its job is suspended: how soon the job is back, and how soon there is room."""

import time
from collections.abc import Iterator, Sequence

import testbed
from program import Program, gcr
from swaps import SETTLE_SECONDS, Row, cycle

CYCLES = 10
KEEP = "--resident"


def measure(
    command: Sequence[str], cycles: int = CYCLES, settle: float = SETTLE_SECONDS, run_flags: Sequence[str] = ()
) -> Iterator[dict[str, list[Row]]]:
    """Ways back in turns, of one program: from resident memory, from the host, and from memory that made room.

    Each result has `kept`, `plain` and `freed`: rows of a checkpoint and its restore. run_flags: of `gcr run`
    """
    ways: dict[str, list[Row]] = {"kept": [], "plain": [], "freed": []}
    with Program(command, job="resident", flags=run_flags) as program:
        before = program.ask()
        time.sleep(max(0.0, settle - (time.monotonic() - program.started)))
        for number in range(cycles):
            ways["kept"].append(cycle(program, before, number, (KEEP,)))
            ways["plain"].append(cycle(program, before, number))
            ways["freed"].append(_freed(program, before))
            yield ways


def _freed(program: Program, before: str) -> Row:
    """Suspends the job with resident memory, then frees that: `room_s`, as a caller sees it."""
    held = testbed.used_bytes()
    gcr("checkpoint", str(program.job), KEEP)
    room = gcr("checkpoint", str(program.job))
    freed = held - testbed.used_bytes()
    gcr("restore", str(program.job))
    return {"room_s": room["cli_wall_s"], "device_freed": freed, "bytes_right": program.ask() == before}
