"""What the shim costs a program that is never checkpointed: alternating pairs of a bare and a shimmed run."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from program import GCR

HERE = Path(__file__).resolve().parent
PAIRS = 20
RUN_SECONDS = 120.0
Pair = dict[str, dict[str, float]]


def command(kind: str, build: Path) -> list[str]:
    """`launch`, `alloc` (a C program over the driver) or `step` (PyTorch)."""
    if kind == "step":
        return [sys.executable, str(HERE / "train_step.py")]
    return [str(compiled(build)), kind]


def compiled(build: Path) -> Path:
    """driver_rates, built once."""
    program = build / "driver_rates"
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("benchmark: no C compiler")
        subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "driver_rates.c"), "-ldl"], check=True)
    return program


def measure(words: Sequence[str], shimmed: bool) -> dict[str, float]:
    """One run's rates, from the last line it prints."""
    full = [*GCR, "run", "--name", "overhead", "--", *words] if shimmed else list(words)
    done = subprocess.run(
        full, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, stdin=subprocess.DEVNULL, env=os.environ
    )
    if done.returncode:
        raise SystemExit(f"benchmark: {' '.join(full)} ended with {done.returncode}: {done.stderr[-2000:]}")
    rates: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return rates


def pair(words: Sequence[str], number: int) -> Pair:
    """Which goes first alternates, so that drift falls on both."""
    order = ("bare", "shimmed") if number % 2 == 0 else ("shimmed", "bare")
    return {which: measure(words, which == "shimmed") for which in order}


def more_pairs(kind: str, build: Path, pairs: list[Pair], deadline: float, wanted: int = PAIRS) -> list[Pair]:
    """`pairs` and as many more as fit before `deadline`, up to `wanted`."""
    words = command(kind, build)
    while len(pairs) < wanted and time.monotonic() < deadline:
        pairs = [*pairs, pair(words, len(pairs))]
    return pairs


def losses(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """For every rate, 1 - shimmed / bare of each pair."""
    names = pairs[0]["bare"] if pairs else {}
    return {name: [1 - each["shimmed"][name] / each["bare"][name] for each in pairs] for name in names}


def ratios(pairs: Sequence[Pair]) -> dict[str, Any]:
    """For every rate, bare / shimmed of each pair: how many times as long a shimmed operation takes."""
    names = pairs[0]["bare"] if pairs else {}
    return {name: [each["bare"][name] / each["shimmed"][name] for each in pairs] for name in names}
