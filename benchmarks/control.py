"""What control state costs, by what a program holds: under gcr, and by the driver's own calls on the bare program.

The first program holds a context and 64 MiB; each other one thing more. What it adds to the control phases is its cost.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import swaps

PROGRAM = Path(__file__).resolve().with_name("control_program.py")
CYCLES = 3
SETTLE_SECONDS = 4.0  # there is little data to prepare for
GIB = 1024  # MiB
HOLDS: Mapping[str, Sequence[str]] = {
    "context": (),
    "allocated-8": ("--allocated-mib", str(8 * GIB)),
    "allocated-64": ("--allocated-mib", str(64 * GIB)),
    "registered-8": ("--registered-mib", str(8 * GIB)),
    "registered-64": ("--registered-mib", str(64 * GIB)),
    "contexts-4": ("--contexts", "3"),
    "pool-1": ("--pool-mib", str(GIB)),
}


def measure(run_flags: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """What is known so far, again with each program; `gcr` and `driver` have a row for each cycle (swaps)."""
    known: dict[str, Any] = {}
    for name, more in HOLDS.items():
        command = [sys.executable, str(PROGRAM), *more]
        by_gcr = swaps.gcr_cycles(command, CYCLES, run_flags=run_flags, settle=SETTLE_SECONDS)
        known[name] = {"gcr": by_gcr, "driver": swaps.driver_cycles(command, CYCLES)}
        yield known
