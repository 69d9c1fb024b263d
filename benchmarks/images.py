"""Images: what they cost on disk and in standstill, beside the disk's own rate in the same minute.

Each piece has a store of its own under GCR_BENCHMARK_STORE (the temporary directory), and leaves nothing there. It
yields what is known so far, again with each image: who is cut short has the rows until then.
"""

import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from program import COMMAND_SECONDS, Program, daemons_with, gcr, stop_daemon

from gcr.memory.hostmemory import available_host_bytes
from gcr.rendezvous.client import Client

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
STATE_GIB = 32.0
PROBE_PIECE = 16 << 20
CYCLES, CHANGED = 5, 0.01
TRAINING_CYCLES = 4
GROWTH, GROWTH_PAUSE = 6000, 0.0005  # allocations at most, and seconds between two
ARENA_BYTES = GIB
SHARE = "GCR_ARENA_SHARE"
SETTLE_SECONDS = 15.0
UNDISTURBED_SECONDS = 6.0
ASIDE_SECONDS = 1.0  # after an image, when a daemon tidies up
OUT = (
    *("vram_free_s", "stop_s", "durable_s", "bytes", "bytes_copied", "snapshot_bytes"),
    *("bytes_total", "bytes_changed", "bytes_zero", "bytes_written"),
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slice:
    """Of a training job: when it began and ended, by the monotonic clock, and its steps a second."""

    began: float
    ended: float
    rate: float


@dataclass(frozen=True, slots=True)
class Taken:
    """When an image was asked for, begun, copied while the job ran, and durable; by the monotonic clock."""

    asked: float
    prepared: float
    copied: float
    durable: float


def program(gib: float, *more: str) -> list[str]:
    return [sys.executable, str(HERE / "image_program.py"), "--gib", str(gib), *more]


@contextmanager
def store() -> Iterator[Path]:
    parent = os.environ.get("GCR_BENCHMARK_STORE", tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=parent, prefix="gcr-images-") as folder:
        yield Path(folder) / "store"


def full(command: Sequence[str], cycles: int = 3) -> Iterator[Row]:
    """Images of a program's random bytes, each written anew and read back with a cold page cache; then one more."""
    rows: list[Row] = []
    with store() as where, settled(command) as running:
        before = running.ask()
        for number in range(cycles):
            if number:
                gcr("rm", f"full{number - 1}", "--store", str(where))
            out, written = _beside(
                partial(write_plainly, where.parent, _held(running) // 2),
                partial(_checkpoint, running, where, f"full{number}", "--wait", "durable"),
            )
            back, read = _restored(where, "--image", f"full{number}", "--store", str(where))
            read_s = back["phases_s"]["loaded"] - back["phases_s"]["room"]  # and copied to the device meanwhile
            rows.append(
                {
                    **_of(out),
                    "write_bytes_per_s": out["bytes_written"] / (out["durable_s"] - out["vram_free_s"]),
                    "read_bytes_per_s": out["bytes_total"] / read_s,
                    "total_s": back["total_s"],
                    "bytes_right": running.ask() == before,
                    "disk": {"write_bytes_per_s": written, "read_bytes_per_s": read},
                }
            )
            yield {"cycles": rows}
        unchanged = _checkpoint(running, where, "unchanged", "--wait", "durable")
        gcr("restore", str(running.job))
        share = unchanged["bytes_written"] / unchanged["bytes_total"]
        yield {"cycles": rows, "unchanged_written_share": share}
        verified = gcr("verify", "--store", str(where))["ok"]
    yield {"cycles": rows, "unchanged_written_share": share, "verified": verified}


def streamed(command: Sequence[str], cycles: int = 2, arena: int = ARENA_BYTES) -> Iterator[Row]:
    """Images of a program that has more than `arena`, which is what host memory is said to have room for."""
    rows: list[Row] = []
    with arena_of(arena), store() as where, settled(command) as running:
        before = running.ask()
        for number in range(cycles):
            out, written = _beside(
                partial(write_plainly, where.parent, _held(running) // 2),
                partial(_checkpoint, running, where, f"streamed{number}"),
            )
            back, read = _restored(where, str(running.job))
            rows.append(
                {
                    **_of(out),
                    "streamed": out["streamed"] and back["streamed"],
                    "vram_after_bytes": out["vram_after_bytes"],
                    "write_bytes_per_s": out["bytes_written"] / (out["durable_s"] - out["phases_s"]["handed_over"]),
                    "read_bytes_per_s": out["bytes_total"] / (back["phases_s"]["loaded"] - back["phases_s"]["room"]),
                    "total_s": back["total_s"],
                    "bytes_right": running.ask() == before,
                    "disk": {"write_bytes_per_s": written, "read_bytes_per_s": read},
                }
            )
            yield {"arena_bytes": arena, "cycles": rows}
            gcr("rm", f"streamed{number}", "--store", str(where))


def live(command: Sequence[str], cycles: int = CYCLES) -> Iterator[Row]:
    """Images of a job that runs on, a hundredth of its chunks changed since the one before."""
    rows: list[Row] = []
    with store() as where, settled(command) as running:
        first = _checkpoint(running, where, "live", "--live", "--leave-running", "--wait", "durable")
        for number in range(cycles):
            said = running.ask(f"touch {CHANGED} {number + 1}")
            out = _checkpoint(running, where, f"live{number}", "--live", "--leave-running", "--wait", "durable")
            shares = {
                f"{what}_share": out[f"bytes_{what}"] / out["bytes_total"] for what in ("written", "changed", "copied")
            }
            rows.append({**_of(out), **shares, "bytes_right": running.ask() == said})
            yield {"first": _of(first), "cycles": rows}


def training(
    command: Sequence[str], cycles: int = TRAINING_CYCLES, undisturbed: float = UNDISTURBED_SECONDS
) -> Iterator[Row]:
    """Steps a second of a training job while a live image of all of it is copied, and when there is none."""
    slices: list[Slice] = []
    images: list[Taken] = []
    with store() as where, settled(command) as running, ThreadPoolExecutor(1) as beside:

        def image(number: int) -> None:
            began, out = _live_image(running, where, f"t{number}")
            done = out["phases_s"]
            images.append(Taken(*(began + at for at in (0, done["prepared"], done["copied_live"], out["durable_s"]))))

        for number in range(cycles):
            if number:
                gcr("rm", f"t{number - 1}", "--store", str(where))  # or the next would take from it what is the same
            _slices(running, slices, undisturbed / 2)
            taking = beside.submit(image, number)
            while not taking.done():
                _slices(running, slices, 0.0)
            taking.result()
            _slices(running, slices, ASIDE_SECONDS + undisturbed / 2)
            yield {"copy_s": [each.copied - each.prepared for each in images], **_sorted(slices, images)}


def growing(command: Sequence[str], cycles: int = 3) -> Iterator[Row]:
    """Live images of all of a job that allocates from the copy on; `handles` of these until the stop."""
    rows: list[Row] = []
    with store() as where, settled(command) as running:
        before = running.ask()
        for number in range(cycles):
            if number:
                gcr("rm", f"grown{number - 1}", "--store", str(where))
            asked: list[str] = []

            def grow(report: Mapping[str, Any], asked: list[str] = asked) -> None:
                if report["phase"] == "copying live" and not asked:
                    asked.append(running.ask(f"grow {GROWTH} {GROWTH_PAUSE}"))

            began, out = _live_image(running, where, f"grown{number}", grow)
            since, stop = (began + out["phases_s"][phase] for phase in ("prepared", "stop"))
            handles = int(running.ask(f"grown {since} {stop}"))
            running.ask("shrink")
            rows.append({**_of(out), "handles": handles, "bytes_right": running.ask() == before})
            yield {"cycles": rows}


def _live_image(
    running: Program, where: Path, name: str, on_progress: Callable[[dict[str, Any]], None] | None = None
) -> tuple[float, Row]:
    """When it was asked for, by the monotonic clock, and what was said of it once it was durable."""
    words = {"image": name, "live": True, "leave_running": True, "wait": "durable", "store": str(where)}
    with Client.connect(autostart=False) as daemon:  # a command takes long to begin
        began = time.monotonic()
        asked = {"target": running.job, **words}
        return began, daemon.request("checkpoint", asked, timeout=COMMAND_SECONDS, on_progress=on_progress)


def _slices(running: Program, slices: list[Slice], seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = json.loads(running.ask("step 0.1"))
        slices.append(Slice(began, time.monotonic(), found["operations"] / found["seconds"]))
        if time.monotonic() >= end:
            return


def _sorted(slices: Sequence[Slice], images: Sequence[Taken]) -> dict[str, list[float]]:
    """Rates of the slices that lie wholly in one of these times; of those on an edge none."""

    def within(spans: Sequence[tuple[float, float]]) -> list[float]:
        return [each.rate for each in slices if any(begin <= each.began and each.ended <= end for begin, end in spans)]

    apart = [0.0, *(at for each in images for at in (each.asked, each.durable + ASIDE_SECONDS)), math.inf]
    return {
        "during": within([(each.prepared, each.copied) for each in images]),
        "undisturbed": within(list(zip(apart[::2], apart[1::2], strict=True))),
    }


# ---- small things ---------------------------------------------------------------------------------------------------


def arena_of(size: int) -> AbstractContextManager[None]:
    """Of daemons that start within it."""
    return daemons_with(SHARE, f"{size / available_host_bytes():.9f}")


@contextmanager
def settled(command: Sequence[str]) -> Iterator[Program]:
    stop_daemon()
    with Program(command, job="images") as running:
        time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - running.started)))
        yield running


def _checkpoint(running: Program, where: Path, name: str, *flags: str) -> Row:
    return gcr("checkpoint", str(running.job), "--image", name, "--store", str(where), *flags)


def _held(running: Program) -> int:
    """Bytes of device memory."""
    (job,) = (job for job in gcr("ps")["jobs"] if job["job"] == running.job)
    return sum(int(process["covered_bytes"]) for process in job["processes"])


def _of(out: Mapping[str, Any]) -> Row:
    return {**{name: out.get(name) for name in OUT}, "phases_s": out["phases_s"]}


def _beside(plain: Callable[[int], tuple[int, float]], act: Callable[[], Row]) -> tuple[Row, float]:
    """What `act` finds, and bytes a second of `plain`: one half of it is done just before, the other just after.

    A disk that others use has another rate a minute later. `plain` takes the half's number, and returns bytes and
    seconds.
    """
    before, found, after = plain(0), act(), plain(1)
    return found, (before[0] + after[0]) / (before[1] + after[1])


def _restored(where: Path, *words: str) -> tuple[Row, float]:
    """Of an image, with a cold page cache, beside a plain reader of the very file."""
    pack = max((where / "packs").iterdir(), key=lambda path: path.stat().st_size)

    def restore() -> Row:
        drop_caches()
        return gcr("restore", *words)

    return _beside(partial(read_plainly, pack), restore)


def write_plainly(folder: Path, nbytes: int, half: int) -> tuple[int, float]:
    """A new file past the page cache, by one thread, until it is synced."""
    path, pieces = folder / f"plain{half}", -(-nbytes // PROBE_PIECE)
    with _piece() as piece:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        began = time.monotonic()
        for number in range(pieces):
            os.pwrite(fd, piece, number * PROBE_PIECE)
        os.fsync(fd)
        taken = time.monotonic() - began
    os.close(fd)
    path.unlink()
    return pieces * PROBE_PIECE, taken


def read_plainly(path: Path, half: int) -> tuple[int, float]:
    """The first or the second half of a file past the page cache, by one thread."""
    pieces = path.stat().st_size // 2 // PROBE_PIECE
    with _piece() as piece:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        began = time.monotonic()
        for number in range(half * pieces, (half + 1) * pieces):
            os.preadv(fd, [piece], number * PROBE_PIECE)
        taken = time.monotonic() - began
    os.close(fd)
    return pieces * PROBE_PIECE, taken


def read_cached(path: Path) -> tuple[int, float]:
    """Reads a file through the page cache, by one thread, to memory that stays in the processor's cache."""
    size = path.stat().st_size
    with _piece() as piece:
        fd = os.open(path, os.O_RDONLY)
        began = time.monotonic()
        for at in range(0, size, PROBE_PIECE):
            os.preadv(fd, [piece], at)
        taken = time.monotonic() - began
    os.close(fd)
    return size, taken


@contextmanager
def _piece() -> Iterator[mmap.mmap]:
    """Random bytes in a huge page, where there are such: a disk gets large requests then."""
    with mmap.mmap(-1, PROBE_PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as piece:
        piece.madvise(mmap.MADV_HUGEPAGE)
        piece.write(os.urandom(PROBE_PIECE))
        yield piece


def drop_caches() -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
