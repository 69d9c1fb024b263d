"""How long training stands still for a checkpoint: an image by gcr, `torch.save`, and DCP's `async_save`.

The same state, the same disk, one program after the other in the same run; those that save by themselves run bare.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import images
from program import Program, gcr

HERE = Path(__file__).resolve().parent
TRAINED = (1.0, 0.01)  # share of the state that a step changes: all of it, or what is trained beside a frozen model
CYCLES, TORCH_CYCLES = 2, 1  # all of the state through the page cache, twice: more than a minute
UNDISTURBED_SECONDS = 3.0
Row = dict[str, Any]


def measure(gib: float) -> Iterator[Row]:
    """What is known so far: rows of each way, its `stands_s` the seconds in which the training did not go on.

    An image for each share that a step changes; torch saves all of the state whatever the share. The ratios are of our
    longest standstill to their shortest.
    """
    known: Row = {"image": {}}
    for share in TRAINED:
        known["image"][f"trained {share:g}"] = by_gcr(program(gib, share))
        yield known
    ours = max(row["stands_s"] for rows in known["image"].values() for row in rows)
    for way, rows in by_torch(program(gib, TRAINED[0])):
        known[way] = rows
        known[f"image_to_{way}"] = ours / min(row["stands_s"] for row in rows)
        yield known


def program(gib: float, trained: float, *more: str) -> list[str]:
    words = ("--gib", str(gib), "--trained", str(trained), *more)
    return [sys.executable, str(HERE / "standstill_program.py"), *words]


def by_gcr(command: Sequence[str], cycles: int = CYCLES) -> list[Row]:
    """`stands_s`: as the program saw it, its longest step but for what one takes; `stop_s`: as gcr says."""
    rows = []
    with images.store() as where, images.settled(command) as running:
        for number in range(cycles):
            typical = _undisturbed(running)
            name = f"standing{number}"
            words = ("--image", name, "--leave-running", "--wait", "durable", "--store", str(where))
            _asked(running, "watch")
            out = gcr("checkpoint", str(running.job), *words)
            seen = _asked(running, "gaps")
            gcr("rm", name, "--store", str(where))
            told = {
                key: out[key] for key in ("stop_s", "durable_s", "bytes", "snapshot_bytes", "bytes_total", "phases_s")
            }
            rows.append({**told, **seen, "stands_s": seen["longest_s"] - typical})
    return rows


def by_torch(command: Sequence[str], cycles: int = TORCH_CYCLES) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a way so far, again with each. `call_s`: until the call is back, when the next step can begin; of
    `async_save` also its longest step after that."""
    saved: list[Row] = []
    beside: list[Row] = []
    with images.store() as where, Program(command, job=None) as running:
        for number in range(cycles):
            typical = _undisturbed(running)
            row = _asked(running, f"save {_fresh(where, f'save{number}')}")
            saved.append({**row, "stands_s": row["call_s"]})
            yield "torch_save", saved
            row = _asked(running, f"async {_fresh(where, f'async{number}')}")
            beside.append({**row, "stands_s": row["call_s"] + row["longest_s"] - typical})
            yield "async_save", beside


def _fresh(where: Path, name: str) -> Path:
    """In a folder that has nothing else in it, or the disk would need room for all."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    return where / name


def _undisturbed(running: Program) -> float:
    """Seconds of a typical step."""
    _asked(running, "watch")
    time.sleep(UNDISTURBED_SECONDS)
    return float(_asked(running, "gaps")["typical_s"])


def _asked(running: Program, words: str) -> Row:
    found: Row = json.loads(running.ask(words))
    return found
