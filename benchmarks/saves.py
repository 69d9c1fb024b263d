"""Saves of a training's tensors: by gcr.torch, under `gcr run` and without, by torch.save and by DCP's async_save.

The same state, the same disk, one program after the other in the same run. Each yields what is known so far.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import images
from program import Program

HERE = Path(__file__).resolve().parent
WAYS = {"copy": 3, "window": 3, "staged": 2, "torch_save": 1, "async_save": 2, "async_pinned": 2}  # and saves of each
OURS = ("copy", "window", "staged")
OTHERS = tuple(way for way in WAYS if way not in OURS)
UNDISTURBED_SECONDS = 3.0
EVERY_SECONDS, FLIGHT = 60.0, 2
TRAINED = 0.01  # of the parameters, beside a frozen model
PROBE = 2 << 30  # bytes of a plain writer
SLOWEST = 6  # of the steps beside a save: so many are told with their times
Row = dict[str, Any]


def blocked(gib: float, *more: str, ways: Sequence[str] = OURS) -> Iterator[Row]:
    """Rows of each way: the seconds that a save blocks the training, its steps until the save is durable, and memory.

    Then the last save is loaded to the device: with its file in the page cache, and dropped from it, each beside a
    plain reader of that file. A way of PyTorch's that fails is noted as `failed`, and the others go on.
    """
    known: Row = {}
    for way in ways:
        try:
            yield from _by(way, known, gib, *more)
        except SystemExit as error:
            if way in OURS:
                raise
            known[way] = {"failed": str(error)}
            yield known


def _by(way: str, known: Row, gib: float, *more: str) -> Iterator[Row]:
    """Adds one way to what is known."""
    with images.store() as where, training(way, where, "--gib", str(gib), "--keep", "1", *more) as running:
        rows = [_saved(running, number) for number in range(1, WAYS[way] + 1)]
        size, seconds = images.write_plainly(where.parent, PROBE, 0)
        known[way] = {"saves": rows, "plain_write_bytes_per_s": size / seconds}
        yield known
        known[way]["loads"] = _loads(running, where, rows[-1])
        asked(running, "end")
        yield known


def training(way: str, where: Path, *more: str) -> Program:
    """`staged` is `copy` without `gcr run`. The others of PyTorch run without it, too."""
    name = "gcr" if way in ("copy", "staged") else way
    words = [sys.executable, str(HERE / "saves_program.py"), name, str(where), *more]
    return Program(words, job="saves" if way in ("copy", "window") else None)


def _saved(running: Program, number: int) -> Row:
    asked(running, "watch")
    time.sleep(UNDISTURBED_SECONDS)
    undisturbed = asked(running, "gaps")
    row = asked(running, f"save {number}")
    in_order = row.pop("steps_s")
    steps = sorted(in_order)
    last = steps[min(len(steps) - 1, len(steps) * 99 // 100)]
    ends = list(accumulate(in_order))
    slowest = sorted(zip(in_order, ends, strict=True), reverse=True)[:SLOWEST]
    told: Row = {"steps": len(steps), "step_s": median(steps), "step_p99_s": last}
    told["slowest"] = [{"ends_after_s": end, "step_s": step} for step, end in slowest]
    return {**row, **told, "undisturbed_s": undisturbed["typical_s"], "undisturbed_longest_s": undisturbed["longest_s"]}


def _loads(running: Program, where: Path, saved: Row) -> Row:
    """Rates in bytes of the store's largest file a second, of plain readers of one thread."""
    file = max((path for path in where.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    load = f"load {saved['step']}"
    images.read_cached(file)  # which brings it to the page cache
    warm_before = images.read_cached(file)
    warm = asked(running, load)
    warm_after = images.read_cached(file)
    images.drop_caches()
    before = images.read_plainly(file, 0)
    cold = asked(running, load)
    after = images.read_plainly(file, 1)
    return {
        "warm_s": warm["call_s"],
        "cold_s": cold["call_s"],
        "plain_read_bytes_per_s": (before[0] + after[0]) / (before[1] + after[1]),
        "plain_warm_read_bytes_per_s": (warm_before[0] + warm_after[0]) / (warm_before[1] + warm_after[1]),
        "bytes": file.stat().st_size,
        "bytes_right": warm["digest"] == cold["digest"] == saved["digest"],
    }


def every(*more: str, way: str = "copy", seconds: float = EVERY_SECONDS) -> Iterator[Row]:
    """Saves a transformer of 1.3 billion parameters with AdamW at each step, but for saves that find no room.

    way: "copy", or "pccheck", which is PCcheck's method with as many in flight
    `share`: bytes written a second, of what a plain writer does before and after; `undisturbed_step_s`: without saves.
    """
    flags = ("--gpt", "--keep", "1", "--in-flight", str(FLIGHT), "--when-full", "skip", *more)
    with images.store() as where, training(way, where, *flags) as running:
        asked(running, "watch")
        time.sleep(UNDISTURBED_SECONDS)
        typical = asked(running, "gaps")["typical_s"]
        before = images.write_plainly(where.parent, PROBE, 0)
        row = asked(running, f"every {seconds}")
        after = images.write_plainly(where.parent, PROBE, 1)
        asked(running, "end")
        a_save = _bytes_below(where) if way == "copy" else row["state_bytes"]
    plain = (before[0] + after[0]) / (before[1] + after[1])
    written = row["saved"] * a_save / row["saved_s"]
    rate = row["steps"] / row["trained_s"]
    yield {
        **row,
        "save_bytes": a_save,
        "plain_write_bytes_per_s": plain,
        "written_bytes_per_s": written,
        "share": written / plain,
        "undisturbed_step_s": typical,
        "slowdown": 1 - rate * typical,
    }


def trained(gib: float, *more: str) -> Iterator[Row]:
    """Bytes that a second save adds, of the first one's, where a hundredth of the parameters is trained."""
    flags = ("--gib", str(gib), "--trained", str(TRAINED), *more)
    with images.store() as where, training("copy", where, *flags) as running:
        grown, rows = [0], []
        for number in (1, 2):
            rows.append(_saved(running, number))
            grown.append(_bytes_below(where))
        asked(running, "end")
    yield {"saves": rows, "first_bytes": grown[1], "share": (grown[2] - grown[1]) / grown[1]}


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def asked(running: Program, words: str) -> Row:
    found: Row = json.loads(running.ask(words))
    return found
