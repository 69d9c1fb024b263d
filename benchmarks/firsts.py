"""First times: the checkpoint of a job that has just grown, and the first live image of a job.

`first-checkpoint`: `cold`: the daemon is new as well · `grown`: the worker was there before the job grew. Both touch
host memory first, since a virtual machine may give free memory back to its host. `first-live`: `images`: one after the
other · `hashes`: the first hashes of a new context, in processes of their own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import images
from program import Program, gcr, stop_daemon
from testbed import warm_host_memory

from gcr.errors import GcrError
from gcr.rendezvous.client import Client

HERE = Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
SOON_SECONDS = 3.0
BEFORE_GIB = 1.0  # what a job has that grows then
WARMED = 2.5  # times the bytes of the job: its arena, what it grew by before, and some more
LIVE_IMAGES = 4
LOOK_SECONDS = 0.2
PROBE_SECONDS = 120.0
SMALL_HANDLES, LARGE_HANDLES, LARGE = 1024, 32, 512 * MIB  # the small ones are of 2 MiB
Row = dict[str, Any]


def checkpoints(gib: float, plain: Sequence[str] = ()) -> Iterator[Row]:
    """Yields the results so far. `gib`: allocated SOON_SECONDS before the checkpoint."""
    known: Row = {"gib": gib}
    stop_daemon()
    warm_host_memory(int(WARMED * gib))
    with Program(images.program(gib, *plain), job="first") as running:
        known["cold"] = twice(running, running.ask())
    yield known
    stop_daemon()
    warm_host_memory(int(WARMED * gib))
    with images.settled(images.program(BEFORE_GIB, *plain)) as running:
        known["grown"] = twice(running, running.ask(f"more {gib}"))
    yield known


def twice(running: Program, before: str) -> Row:
    """The program said `before` just now, all of it in place."""
    rows = []
    for wait in (SOON_SECONDS, 0.0):
        time.sleep(wait)
        with Watching() as arena:
            out = gcr("checkpoint", str(running.job))
        back = gcr("restore", str(running.job))
        rows.append(
            {
                **{name: out[name] for name in ("bytes", "vram_free_s", "stop_s", "drain_s", "cli_wall_s")},
                "steps_s": steps(out["phases_s"]),
                "arena": arena.seen,
                "total_s": back["total_s"],
                "bytes_right": running.ask() == before,
            }
        )
    return {"first": rows[0], "second": rows[1], "first_s": rows[0]["vram_free_s"], "second_s": rows[1]["vram_free_s"]}


def steps(phases: Mapping[str, float]) -> dict[str, float]:
    """Seconds from each mark to the next."""
    marks = sorted(phases.items(), key=lambda mark: mark[1])
    return {after: at - before for (_, before), (after, at) in pairwise([("", 0.0), *marks])}


class Watching:
    """Looks how large the arenas are, until it is left."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []  # seconds since it began, and bytes that are pinned
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watching":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while True:
            try:
                with Client.connect(autostart=False) as daemon:
                    self.seen.append((time.monotonic() - began, daemon.request("status")["arena_pinned_bytes"]))
            except GcrError:
                pass  # it is busy, or has no worker yet
            if self._over.wait(LOOK_SECONDS):
                return


# ---- live images ----------------------------------------------------------------------------------------------------


def live(gib: float, plain: Sequence[str] = (), probe: Callable[[str], Row] | None = None) -> Iterator[Row]:
    """Live images of a job that runs on, by a daemon and a worker that have made none before."""
    known: Row = {"gib": gib, "images": [], "hashes": {}}
    with images.store() as where, images.settled(images.program(gib, *plain)) as running:
        said = running.ask()
        for number in range(LIVE_IMAGES):
            words = ("--image", f"live{number}", "--store", str(where), "--live", "--leave-running")
            out = gcr("checkpoint", str(running.job), *words, "--wait", "durable")
            facts = {name: out[name] for name in ("bytes", "bytes_copied", "snapshot_bytes", "stop_s", "durable_s")}
            right = running.ask() == said
            known["images"].append({**facts, "steps_s": steps(out["phases_s"]), "bytes_right": right})
            said = running.ask(f"touch 0.01 {number + 1}")
            yield known
    stop_daemon()
    for name in PROBES:
        known["hashes"][name] = (probe or probed)(name)
        yield known


def probed(name: str) -> Row:
    """In a process of its own, whose context has done nothing yet, without the driver's cache of compiled kernels."""
    command = [sys.executable, str(HERE / "firsts.py"), name]
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    if done.returncode:
        return {"refused": done.stderr[-1000:]}
    found: Row = json.loads(done.stdout)
    return found


def probe_hashes(before: str, small: int = SMALL_HANDLES, large: int = LARGE_HANDLES, size: int = LARGE) -> Row:
    """Seconds of each call, in order. `before` is what is done before the first hash of everything."""
    from gcr.drain import HandleSpec, Move
    from gcr.hashing import HashKey
    from gcr.vmm import VmmDrain
    from gcr_nvidia import devices
    from gcr_nvidia.memory import CudaDevice

    found: Row = {}

    def timed(what: str, step: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = step()
        found[f"{what}_s"] = time.monotonic() - began
        return result

    drain, key = VmmDrain(CudaDevice(devices.present()[0].uuid)), HashKey.random()
    with closing(drain):
        tiny = [drain.create([HandleSpec(1, 2 * MIB)])]
        batches = [[HandleSpec(64 * n + i + 2, 2 * MIB) for i in range(64)] for n in range(small // 64)]
        ranges = [drain.create(batch) for batch in batches]
        ranges.append(drain.create([HandleSpec(small + i + 2, size) for i in range(large)]))
        if before in ("nothing-hashed", "one-chunk", "every-range"):
            timed("module", lambda: drain.hash([], key))
        if before in ("one-chunk", "every-range"):
            timed("one_chunk", lambda: drain.hash(tiny, key))
        if before == "every-range":
            timed("everything_before", lambda: drain.hash(ranges, key))
        for number in range(3):
            timed(f"hash{number}", lambda: drain.hash(ranges, key))
        room = drain.create([HandleSpec(0, size)])
        for number in range(3):
            moves = [Move(room.address, ranges[-1].address, size)]
            timed(f"move{number}", lambda moves=moves: drain.move(moves).wait(PROBE_SECONDS))
        time.sleep(2.0)
        timed("hash_after_a_pause", lambda: drain.hash(ranges, key))
    return found


PROBES = ("nothing", "nothing-hashed", "one-chunk", "every-range")

if __name__ == "__main__":
    print(json.dumps(probe_hashes(sys.argv[1])))
