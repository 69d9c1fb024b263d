"""All devices of a machine at once: a job on each of them, and one process that uses all of them.

Both are measured beside the same on one device alone, and beside plain copies of all devices at once (link.py), which
is what the machine's host memory can do. Every swap copies all: no copy is kept from the one before.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kept_copy import KEEP_COPY
from link import DOWN, UP
from overhead import start_daemon
from program import Program, daemons_with, fill
from sharing_jobs import gathered, goal
from stats import median

from gcr.errors import GcrError
from gcr.rendezvous.client import Client
from gcr_nvidia import devices

HERE = Path(__file__).resolve().parent
GIB, CYCLES = 32.0, 5  # on a device; the first cycle is not counted
SETTLE_SECONDS = 20.0  # for gcr to prepare
LINK_SECONDS, SWAP_SECONDS = 120.0, 120.0
LEAST_SHARE, MOST_TIMES = 0.8, 1.5
CHECKPOINT = ("bytes", "vram_free_s", "stop_s", "drain_s", "control_s", "vram_after_bytes", "phases_s")
RESTORE = ("bytes", "total_s", "refill_s", "control_s", "phases_s", "cold")
Row = dict[str, Any]
Result = dict[str, Any]


def jobs(gib: float = GIB, cycles: int = CYCLES) -> Result:
    """Swaps the job on the first device alone, then the jobs on all devices at once, in turns."""
    return judged(jobs_of([fill(gib)] * len(devices.handles()), cycles), links_at_once())


def process(gib: float = GIB, cycles: int = CYCLES) -> Result:
    """Swaps a process that uses one device, and one that uses all of them with peer access, in turns."""
    programs = [fill(gib), fill(gib, "--devices", str(len(devices.handles())))]
    return judged(process_of(programs, cycles), links_at_once())


def links_at_once() -> Row:
    """Measures plain copies in a process that ends before any job begins."""
    words = [sys.executable, str(HERE / "link.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LINK_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"benchmark: link.py failed: {done.stderr[-2000:]}")
    found: Row = json.loads(done.stdout)
    return found


def jobs_of(commands: Sequence[Sequence[str]], cycles: int, run_flags: Sequence[str] = ()) -> Iterator[Row]:
    """The Nth program sees the Nth device alone."""
    sees = [{"CUDA_VISIBLE_DEVICES": str(number)} for number in range(len(commands))]
    with started(commands, sees, run_flags) as programs:
        yield from _in_turns(programs, {"alone": programs[:1], "together": programs}, cycles)


def process_of(commands: Sequence[Sequence[str]], cycles: int, run_flags: Sequence[str] = ()) -> Iterator[Row]:
    """commands: of a process that uses one device, and of one that uses all."""
    with started(commands, [{}] * len(commands), run_flags) as programs:
        yield from _in_turns(programs, {"alone": programs[:1], "together": programs[1:]}, cycles)


@contextmanager
def started(
    commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], run_flags: Sequence[str]
) -> Iterator[Sequence[Program]]:
    """Yields the jobs, which begin side by side and are ready."""
    with ExitStack() as stack:
        stack.enter_context(daemons_with(KEEP_COPY, "0"))
        start_daemon()
        programs = [
            stack.enter_context(Program(command, f"all-{number}", environment, run_flags, wait=False))
            for number, (command, environment) in enumerate(zip(commands, environments, strict=True))
        ]
        for program in programs:
            program.await_ready()
        yield programs


def _in_turns(programs: Sequence[Program], ways: Mapping[str, Sequence[Program]], cycles: int) -> Iterator[Row]:
    before = [program.ask() for program in programs]
    time.sleep(SETTLE_SECONDS)
    for number in range(cycles):
        for way, some in ways.items():
            row = {"way": way, "cycle": number, **_swapped(some)}
            yield {**row, "bytes_right": [program.ask() for program in programs] == before}


def _swapped(programs: Sequence[Program]) -> Row:
    """`out`, `in`: of each job. `out_s`, `in_s`: until the last of them is done, as their caller sees it."""
    out, out_s = _at_once("checkpoint", programs)
    left = [sum(devices.bytes_of(program.pid).values()) for program in programs]
    used = {device.uuid: device.used_bytes for device in devices.present()}
    back, in_s = _at_once("restore", programs)
    return {
        "out": [{name: each.get(name) for name in CHECKPOINT} for each in out],
        "in": [{name: each.get(name) for name in RESTORE} for each in back],
        "out_s": out_s,
        "in_s": in_s,
        "left_bytes": left,
        "used_bytes": used,
    }


def _at_once(command: str, programs: Sequence[Program]) -> tuple[list[Row], float]:
    """Returns the reports, and the seconds until the last of them is there. An error ends the benchmark."""
    with ExitStack() as stack, ThreadPoolExecutor(len(programs)) as pool:
        clients = [stack.enter_context(Client.connect()) for _ in programs]
        began = time.monotonic()
        answers = pool.map(
            lambda client, program: client.request(command, {"target": program.job}, timeout=SWAP_SECONDS),
            clients,
            programs,
        )
        try:
            return [dict(each) for each in answers], time.monotonic() - began
        except GcrError as error:
            raise SystemExit(f"benchmark: {command}: {error.code}: {error}") from error


# ---- judged -----------------------------------------------------------------------------------------------------


def judged(made: Iterator[Row], links: Row) -> Result:
    """Judges all cycles but the first; the bytes of all. An error ends it, and is in the result."""
    rows, failed = gathered(made)
    counted = [row for row in rows if row["cycle"]]
    facts = {"links": links, "rows": rows, "cores": os.cpu_count()}
    if failed or not counted:
        return {**facts, "failed": failed, "ok": False}
    wrong = sum(not row["bytes_right"] for row in rows)
    left = max(size for row in rows for size in row["left_bytes"])
    goals = [
        goal("swaps with a wrong byte", wrong, "0", not wrong),
        goal("bytes left on a device", left, "0", not left),
        *_of_rates([row for row in counted if row["way"] == "together"], links),
        *_of_times(counted),
    ]
    return {**facts, "medians_s": _medians(counted), "goals": goals, "ok": all(each["met"] for each in goals)}


def _of_rates(together: Sequence[Row], links: Row) -> Iterator[Row]:
    for way, copied, name in (("out", "drain_s", DOWN), ("in", "refill_s", UP)):
        rate = median([sum(job["bytes"] for job in row[way]) / _slowest(row, way, copied) for row in together])
        share = rate / links[f"{name}_bytes_per_s"]
        yield goal(f"{way}: sum of rates / plain copies at once", share, f">= {LEAST_SHARE}", share >= LEAST_SHARE)


def _of_times(counted: Sequence[Row]) -> Iterator[Row]:
    for way, name in (("out", "stop_s"), ("out", "control_s"), ("in", "control_s")):
        both = {
            which: median([_slowest(row, way, name) for row in counted if row["way"] == which])
            for which in ("alone", "together")
        }
        times = both["together"] / both["alone"]
        yield goal(f"{way}: {name}, together / alone", times, f"<= {MOST_TIMES}", times <= MOST_TIMES)


def _medians(counted: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Returns the medians of the slowest job's times, by way."""
    names: Sequence[tuple[str, Callable[[Row], float]]] = [
        ("out_s", lambda row: row["out_s"]),
        ("in_s", lambda row: row["in_s"]),
        *((f"out_{name}", lambda row, name=name: _slowest(row, "out", name)) for name in CHECKPOINT[1:5]),
        *((f"in_{name}", lambda row, name=name: _slowest(row, "in", name)) for name in RESTORE[1:4]),
    ]
    return {
        which: {name: median([of(row) for row in counted if row["way"] == which]) for name, of in names}
        for which in ("alone", "together")
    }


def _slowest(row: Row, way: str, name: str) -> float:
    return max(job[name] for job in row[way])
