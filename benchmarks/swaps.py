"""Checkpoint and restore of the same program by gcr, by the driver alone, and by torch_memory_saver."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import testbed
from program import Program, fill, gcr, stop_daemon

CYCLES = 5
SETTLE_SECONDS = 20.0
HERE = Path(__file__).resolve().parent
OUT = ("bytes", "strategy", "vram_free_s", "stop_s", "drain_s", "drain_bytes_per_s", "control_s", "resident_bytes")
CHECKPOINT = (*OUT, "bytes_copied", "phases_s", "cli_wall_s")
RESTORE = ("refill_s", "refill_bytes_per_s", "control_s", "total_s", "resident_bytes", "phases_s", "cold", "cli_wall_s")
Row = dict[str, Any]


def by_gcr(gib: float, cycles: int = CYCLES, more: Sequence[str] = (), flags: Sequence[str] = ()) -> list[Row]:
    return gcr_cycles(fill(gib, *more), cycles, flags)


def gcr_cycles(
    command: Sequence[str],
    cycles: int = CYCLES,
    flags: Sequence[str] = (),
    run_flags: Sequence[str] = (),
    settle: float | None = None,
) -> list[Row]:
    """Cycles of a program that has run for a while, so that gcr has had time to prepare.

    flags: of `gcr checkpoint` · run_flags: of `gcr run` · settle: seconds; else SETTLE_SECONDS
    """
    with Program(command, job="swap", flags=run_flags) as program:
        before = program.ask()
        since = time.monotonic() - program.started
        time.sleep(max(0.0, (SETTLE_SECONDS if settle is None else settle) - since))
        return [cycle(program, before, number, flags) for number in range(cycles)]


def cycle(program: Program, before: str, number: int, flags: Sequence[str] = ()) -> Row:
    used = testbed.used_bytes()
    out, target_vram = checkpoint(program, flags)
    freed = used - testbed.used_bytes()
    back = gcr("restore", str(program.job))
    return {
        "cycle": number,
        **{f"out_{name}": out.get(name) for name in CHECKPOINT},
        "handles": sum(each["handles"] for each in out["processes"]),
        "uncovered": [each["uncovered"] for each in out["processes"]],
        **{name: sum(each[name] for each in out["processes"]) for name in ("pinned_host_bytes", "contexts")},
        "target_vram_after": target_vram,
        "device_freed": freed,  # all in use on the device, whomever it counts for
        **{f"in_{name}": back.get(name) for name in RESTORE},
        "bytes_right": program.ask() == before,
    }


def checkpoint(program: Program, flags: Sequence[str] = ()) -> tuple[Row, int]:
    """The report, and what NVML counts for the target at once after the command came back."""
    out = gcr("checkpoint", str(program.job), *flags)
    return out, testbed.bytes_of(program.pid)


@contextmanager
def driver_helper() -> Iterator[Any]:
    """A process that stays and makes the driver's checkpoint calls; yields `call(step, pid) -> seconds`."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "driver_helper.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline().strip() == "ready"

    def call(step: str, pid: int) -> float:
        process.stdin.write(f"{step} {pid}\n")
        process.stdin.flush()
        result, seconds = process.stdout.readline().split()
        if result != "CUDA_SUCCESS":
            raise SystemExit(f"benchmark: the driver's {step} returned {result}")
        return float(seconds)

    yield call
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def by_driver(gib: float, cycles: int = CYCLES) -> list[Row]:
    return driver_cycles(fill(gib), cycles)


def driver_cycles(command: Sequence[str], cycles: int = CYCLES) -> list[Row]:
    """The bare program; the driver carries its data."""
    rows = []
    with driver_helper() as call, Program(command, job=None) as program:
        before = program.ask()
        for number in range(cycles):
            lock, out = call("lock", program.pid), call("checkpoint", program.pid)
            vram = testbed.bytes_of(program.pid)
            back, unlock = call("restore", program.pid), call("unlock", program.pid)
            right = program.ask() == before
            times = {"out_s": lock + out, "in_s": back + unlock}
            rows.append({"cycle": number, **times, "target_vram_after": vram, "bytes_right": right})
    return rows


def by_saver(gib: float, cycles: int = CYCLES) -> list[Row]:
    """torch_memory_saver with a copy in host memory, called by the program itself. Empty when it is not installed."""
    if importlib.util.find_spec("torch_memory_saver") is None:
        return []
    done = subprocess.run(
        [sys.executable, str(HERE / "saver_program.py"), str(gib), str(cycles)],
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"benchmark: torch_memory_saver failed: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def first(gib: float) -> Row:
    """The first checkpoint, 20 s after `gcr run` with a daemon of its own, and the warm ones after it."""
    stop_daemon()
    rows = by_gcr(gib, cycles=4)
    return {"first": rows[0], "warm": rows[1:]}


def cold(gib: float) -> Row:
    """A restore after the worker has gone, beside warm ones of the same program."""
    stop_daemon()
    with Program(fill(gib), job="swap") as program:
        before = program.ask()
        time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - program.started)))
        warm = [cycle(program, before, number) for number in range(3)]
        checkpoint(program)
        how = end_workers()
        back = gcr("restore", "swap")
        return {
            "warm": warm,
            "worker_gone_by": how,
            **{f"in_{name}": back.get(name) for name in RESTORE},
            "bytes_right": program.ask() == before,
        }


def end_workers(patience: float = 30.0) -> str:
    """Until the daemon has none: by its idle time (GCR_WORKER_IDLE_S) if that is short, else by killing them."""
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        if not gcr("daemon", "status")["workers"]:
            return "idle"
        time.sleep(1.0)
    for worker in gcr("daemon", "status")["workers"]:
        subprocess.run(["kill", "-9", str(worker["pid"])], check=True)
    time.sleep(2.0)
    return "killed"


def low_vram(gib: float, leave: int = 192 << 20) -> Row:
    """A checkpoint while another process has taken all but `leave` bytes of the device."""
    with Program(fill(gib), job="swap") as program:
        before = program.ask()
        time.sleep(SETTLE_SECONDS)
        with Program([sys.executable, str(HERE / "hog.py"), str(leave)], job=None):
            free = testbed.free_bytes()
            out, vram = checkpoint(program)
        back = gcr("restore", "swap")
        return {
            "free_before": free,
            **{f"out_{name}": out.get(name) for name in CHECKPOINT},
            "target_vram_after": vram,
            "in_total_s": back["total_s"],
            "bytes_right": program.ask() == before,
        }
