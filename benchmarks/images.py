"""Images: what they cost on disk and in standstill, beside the disk's own rate in the same run.

Each piece has a store of its own under GCR_BENCHMARK_STORE (the temporary directory), and leaves nothing there.
"""

import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from program import Program, gcr, stop_daemon

from gcr.hostmemory import available_host_bytes

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
FULL_GIB, LIVE_GIB = 16.0, 32.0
PROBE_BYTES, PROBE_PIECE = 8 * GIB, 16 << 20
CYCLES, CHANGED = 5, 0.01
ARENA_BYTES = GIB
SHARE = "GCR_ARENA_SHARE"
SETTLE_SECONDS = 15.0
UNDISTURBED_SECONDS = 6.0
OUT = (
    *("vram_free_s", "stop_s", "durable_s", "bytes", "bytes_copied", "snapshot_bytes"),
    *("bytes_total", "bytes_changed", "bytes_zero", "bytes_written"),
)
Row = dict[str, Any]


def program(gib: float, *more: str) -> list[str]:
    return [sys.executable, str(HERE / "image_program.py"), "--gib", str(gib), *more]


@contextmanager
def store() -> Iterator[Path]:
    parent = os.environ.get("GCR_BENCHMARK_STORE", tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=parent, prefix="gcr-images-") as folder:
        yield Path(folder) / "store"


def full(command: Sequence[str] | None = None, cycles: int = 3, probe: int = PROBE_BYTES) -> Row:
    """Images of a program's random bytes, each written anew and read back with a cold page cache."""
    rows = []
    with store() as where, settled(command or program(FULL_GIB)) as running:
        disk = disk_rates(where.parent, probe)
        before = running.ask()
        for number in range(cycles):
            out = _checkpoint(running, where, f"full{number}", "--wait", "durable")
            again = gcr("verify", f"full{number}", "--store", str(where))["ok"]
            drop_caches()
            back = gcr("restore", "--image", f"full{number}", "--store", str(where))
            read_s = back["phases_s"]["loaded"] - back["phases_s"]["room"]  # and copied to the device meanwhile
            right = running.ask() == before
            rows.append(
                {
                    **_of(out),
                    "write_bytes_per_s": out["bytes_written"] / (out["durable_s"] - out["vram_free_s"]),
                    "read_bytes_per_s": out["bytes_total"] / read_s,
                    "total_s": back["total_s"],
                    "bytes_right": right and again,
                }
            )
            gcr("rm", f"full{number}", "--store", str(where))
        first = _checkpoint(running, where, "first", "--wait", "durable")
        gcr("restore", str(running.job))
        unchanged = _checkpoint(running, where, "second", "--wait", "durable")
        gcr("restore", str(running.job))
    share = unchanged["bytes_written"] / first["bytes_total"]
    return {"disk": disk, "cycles": rows, "unchanged_written_share": share}


def streamed(
    command: Sequence[str] | None = None, cycles: int = 2, probe: int = PROBE_BYTES, arena: int = ARENA_BYTES
) -> Row:
    """Images of a program that has more than `arena`, which is what host memory is said to have room for."""
    rows = []
    with arena_of(arena), store() as where, settled(command or program(FULL_GIB)) as running:
        disk = disk_rates(where.parent, probe)
        before = running.ask()
        for number in range(cycles):
            out = _checkpoint(running, where, f"streamed{number}")
            drop_caches()
            back = gcr("restore", str(running.job))
            rows.append(
                {
                    **_of(out),
                    "streamed": out["streamed"] and back["streamed"],
                    "vram_after_bytes": out["vram_after_bytes"],
                    "write_bytes_per_s": out["bytes_written"] / (out["durable_s"] - out["phases_s"]["handed_over"]),
                    "read_bytes_per_s": out["bytes_total"] / (back["phases_s"]["loaded"] - back["phases_s"]["room"]),
                    "total_s": back["total_s"],
                    "bytes_right": running.ask() == before,
                }
            )
            gcr("rm", f"streamed{number}", "--store", str(where))
    return {"disk": disk, "arena_bytes": arena, "cycles": rows}


def live(command: Sequence[str] | None = None, cycles: int = CYCLES) -> Row:
    """Images of a job that runs on, a hundredth of its chunks changed since the one before."""
    rows = []
    with store() as where, settled(command or program(LIVE_GIB)) as running:
        first = _checkpoint(running, where, "live", "--live", "--leave-running", "--wait", "durable")
        for number in range(cycles):
            said = running.ask(f"touch {CHANGED} {number + 1}")
            out = _checkpoint(running, where, f"live{number}", "--live", "--leave-running", "--wait", "durable")
            rows.append({**_of(out), "bytes_right": running.ask() == said})
    for row in rows:
        row["written_share"], row["changed_share"], row["copied_share"] = (
            row[name] / row["bytes_total"] for name in ("bytes_written", "bytes_changed", "bytes_copied")
        )
    return {"first": _of(first), "cycles": rows}


def training(command: Sequence[str] | None = None) -> Row:
    """Steps of a training job while a live image of it is copied, against those just before and after."""
    with store() as where, settled(command or [sys.executable, str(HERE / "train_step.py"), "busy"]) as running:
        slices: list[tuple[float, float]] = []  # when it began, steps a second
        images: list[tuple[float, float]] = []

        def image(number: int) -> None:
            began = time.monotonic()
            out = _checkpoint(running, where, f"t{number}", "--live", "--leave-running")
            images.append((began + out["phases_s"]["prepared"], began + out["phases_s"]["copied_live"]))

        for number in range(CYCLES):
            _slices(running, slices, UNDISTURBED_SECONDS / 2)
            taking = threading.Thread(target=image, args=(number,))
            taking.start()
            while taking.is_alive():
                _slices(running, slices, 0.0)
            taking.join()
            _slices(running, slices, UNDISTURBED_SECONDS / 2)
    during = [rate for at, rate in slices if any(begin <= at <= end for begin, end in images)]
    apart = [rate for at, rate in slices if not any(begin - 1 <= at <= end + 3 for begin, end in images)]
    return {"during": during, "undisturbed": apart, "copy_s": [end - begin for begin, end in images]}


def _slices(running: Program, slices: list[tuple[float, float]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = json.loads(running.ask("step 0.1"))
        slices.append((began, found["operations"] / found["seconds"]))
        if time.monotonic() >= end:
            return


# ---- small things ---------------------------------------------------------------------------------------------------


@contextmanager
def arena_of(size: int) -> Iterator[None]:
    """Of daemons that start within it."""
    before = os.environ.get(SHARE)
    os.environ[SHARE] = f"{size / available_host_bytes():.9f}"
    try:
        yield
    finally:
        stop_daemon()
        if before is None:
            del os.environ[SHARE]
        else:
            os.environ[SHARE] = before


@contextmanager
def settled(command: Sequence[str]) -> Iterator[Program]:
    stop_daemon()
    with Program(command, job="images") as running:
        time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - running.started)))
        yield running


def _checkpoint(running: Program, where: Path, name: str, *flags: str) -> Row:
    return gcr("checkpoint", str(running.job), "--image", name, "--store", str(where), *flags)


def _of(out: Mapping[str, Any]) -> Row:
    return {**{name: out.get(name) for name in OUT}, "phases_s": out["phases_s"]}


def disk_rates(folder: Path, nbytes: int) -> Row:
    """Bytes a second of a plain writer and reader past the page cache, in one file of random bytes."""
    path = folder / "probe"
    with mmap.mmap(-1, PROBE_PIECE) as piece:
        piece.write(os.urandom(PROBE_PIECE))
        rates = {
            "write_bytes_per_s": _timed(
                path, os.O_WRONLY | os.O_CREAT, nbytes, lambda fd, at: os.pwrite(fd, piece, at)
            ),
            "read_bytes_per_s": _timed(path, os.O_RDONLY, nbytes, lambda fd, at: os.preadv(fd, [piece], at)),
        }
    path.unlink()
    return {"bytes": nbytes, **rates}


def _timed(path: Path, flags: int, nbytes: int, move: Any) -> float:
    fd = os.open(path, flags | os.O_DIRECT)
    began = time.monotonic()
    try:
        for at in range(0, nbytes, PROBE_PIECE):
            move(fd, at)
        os.fsync(fd)
    finally:
        os.close(fd)
    return nbytes / (time.monotonic() - began)


def drop_caches() -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
