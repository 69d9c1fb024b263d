"""Work of other processes beside a program that the driver restored, and traps of its kernels: collected, not judged.

By the driver's own calls, without gcr. NVIDIA's r580 neither preempts such a program nor keeps its trap handler
(docs/limitations.md); a driver that does would show it here.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gcr_nvidia.control import NvidiaControl

PROGRAM = Path(__file__).resolve().with_name("restored_program.py")
LONG_S, LEAD_S, TIMEOUT_S = 6.0, 0.3, 30.0
BESIDE = ("kernels", "onto", "sets", "to")
TRAPS = ("trap", "assert")


def collect() -> dict[str, Any]:
    rows = [_beside(work, restored) for work in BESIDE for restored in (False, True)]
    traps = [_trap(work, restored) for work in TRAPS for restored in (False, True)]
    return {"ok": True, "beside_a_long_kernel": rows, "traps": traps}


def _beside(work: str, restored: bool) -> dict[str, Any]:
    """Returns what came of a long kernel, and the longest wait of other work beside it."""
    with _program(restored) as program, _program(False) as other:
        _ask(program, f"long {LONG_S}")
        time.sleep(LEAD_S)
        _ask(other, f"{work} {LONG_S - 2 * LEAD_S}")
        return {"restored": restored, "beside": work, "program": _answer(program), "longest_wait": _answer(other)}


def _trap(work: str, restored: bool) -> dict[str, Any]:
    with _program(restored) as program:
        _ask(program, f"{work} 0")
        return {"restored": restored, "kernel": work, "program": _answer(program)}


@contextmanager
def _program(restored: bool) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, str(PROGRAM)]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL  # CUDA prints assertions
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=none, text=True) as program:
        try:
            if _answer(program) != "ready":
                raise RuntimeError("the program did not start")
            if restored:
                _there_and_back(program.pid)
            yield program
        finally:
            program.kill()


def _there_and_back(pid: int) -> None:
    control = NvidiaControl()
    control.lock(pid, TIMEOUT_S)
    control.checkpoint(pid, TIMEOUT_S)
    control.restore(pid, {}, TIMEOUT_S)
    control.unlock(pid, TIMEOUT_S)


def _ask(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{line}\n")
    program.stdin.flush()


def _answer(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()
