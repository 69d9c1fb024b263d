"""One training job, swapped a thousand times: nothing may grow, slow down, or compute otherwise.

    python soak.py FOLDER SWAPS     is the process that swaps it; `piece` starts it, and asks for what came out

It takes longer than a command may: a call that finds it under way says so, a later one brings the result.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import swapping
import testbed
from held import Held, World, family
from outlive import NotYet, Outliving
from overhead import start_daemon
from program import gcr
from victims import EVERY, Victim

SWAPS = 1000
GAP = 0.05  # seconds at most from a step to the next checkpoint
WAIT_SECONDS = 430.0
END_SECONDS = 20.0
SWAP_SECONDS = 0.9  # about
SAMPLES = 40
MIB = 1 << 20
MORE_MEMORY = 8 * MIB  # that a process may hold in the end: allocators keep what they once had
MORE_TIME = 0.1  # share, of the median
Result = dict[str, Any]
Row = Mapping[str, Any]


def piece() -> Result:
    """Begins, or brings what came out. Raises NotYet in between, SystemExit when it failed."""
    outliving = Outliving.named("soak")
    if not outliving.began:
        outliving.begin([str(Path(__file__).resolve()), str(SWAPS)], {})
    if not outliving.ended_within(WAIT_SECONDS):
        raise NotYet(SWAP_SECONDS * (SWAPS - done(outliving.folder)))
    result: Result = json.loads(outliving.wait("result", END_SECONDS))
    outliving.clear()
    return result


def done(folder: Path) -> int:
    """Swaps so far."""
    with suppress(OSError):
        return int((folder / "swaps").read_text())
    return 0


def soak(outliving: Outliving, victim: Victim, swaps: int, world: World) -> Result:
    start_daemon()  # else it were the child of the job's supervisor, and taken for the program
    watch = Watch(outliving, world, every=max(1, swaps // SAMPLES))
    with tempfile.TemporaryDirectory() as folder:
        plan = swapping.Plan(swaps, watch.look)
        found = swapping.run(replace(victim, gap=GAP), world, Path(folder), nullcontext(), plan)
    found["samples"], found["drifts"] = watch.samples, list(drifts(watch.samples, found["gcr"]["swaps"]))
    return {**found, "ok": found["ok"] and not found["drifts"]}


@dataclass
class Watch:
    """Samples of the memory that each process holds, every so many swaps."""

    outliving: Outliving
    world: World
    every: int
    seen: int = 0
    samples: list[Result] = field(default_factory=list)

    def look(self, running: Held) -> None:
        self.seen += 1
        self.outliving.leave("swaps", self.seen)
        if self.seen % self.every == 0:
            self.samples.append({"swap": self.seen, **self._sample(running)})

    def _sample(self, running: Held) -> Result:
        target = family(running.process.pid)[0]
        daemon = gcr("daemon", "status")
        workers = {f"worker {number}": row["pid"] for number, row in enumerate(daemon["workers"])}
        pids = {"program": target, "supervisor": running.process.pid, "daemon": daemon["pid"], **workers}
        return {
            "processes": {name: held_by(pid) for name, pid in pids.items()},
            "program_device_bytes": self.world.bytes_of(target),
            "device_used_bytes": testbed.used_bytes(),
        }


def held_by(pid: int) -> dict[str, int]:
    """Bytes of its own memory, descriptors and threads."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    own = int(fields["RssAnon"].split()[0]) * 1024
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return {"bytes": own, "descriptors": descriptors, "threads": int(fields["Threads"])}


def drifts(samples: Sequence[Row], swaps: Sequence[Row]) -> Iterator[str]:
    """Yields the growth of the last quarter over the second; memory kept for good is there by the first."""
    if len(samples) < 4:
        yield f"only {len(samples)} samples"
        return
    early, late = _quarters(samples)
    for name in early[0]["processes"]:
        yield from _of_process(name, early, late)
    for count, of in (("program_device_bytes", max), ("device_used_bytes", min)):  # a driver has more now and then
        before, after = (of(sample[count] for sample in part) for part in (early, late))
        if after > before:
            yield f"{count} grew from {before} to {after}"
    early, late = _quarters(swaps)
    for time in ("out_vram_free_s", "out_stop_s", "in_total_s"):
        before, after = (statistics.median(swap[time] for swap in part) for part in (early, late))
        if after > before * (1 + MORE_TIME):
            yield f"{time} grew from {before:.3f} to {after:.3f}"


def _quarters(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """The second and the last."""
    quarter = len(rows) // 4
    return rows[quarter : 2 * quarter], rows[-quarter:]


def _of_process(name: str, early: Sequence[Row], late: Sequence[Row]) -> Iterator[str]:
    for what, more in (("bytes", MORE_MEMORY), ("descriptors", 0), ("threads", 0)):
        before, after = (
            min(sample["processes"].get(name, {}).get(what, 0) for sample in part) for part in (early, late)
        )
        if after > before + more:
            yield f"{what} of the {name} grew from {before} to {after}"


def main() -> None:
    outliving, swaps = Outliving(Path(sys.argv[1])), int(sys.argv[2])
    outliving.work(lambda: soak(outliving, EVERY["torch"], swaps, World()))


if __name__ == "__main__":
    main()
