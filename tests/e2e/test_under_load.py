"""Cycle after cycle at random instants, while threads of the program launch kernels, allocate and free.

The program checks every word of every array against a model of its own, and its digest must be that of a bare run of as
many steps; its counters say whether a cut met work in flight. Cycles go through one connection, so that what is
measured is gcr and not the start of a command.
"""

import os
import random
import signal
import statistics
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from growth import Growth
from machine import Machine, Victim, until
from worlds import AMD, AMD_QUIRKS, NVIDIA, WORLDS, at, everywhere

from gcr.native import sim_dir
from gcr.rendezvous.client import Client

THREADS = 3
MEDIAN_CYCLE = 0.150  # seconds; 0.04 s on one idle machine of two cores, 0.10 to 0.124 s on another
SLOWEST_CYCLE = 1.0  # seconds in each world, on any machine
YARDSTICK_S = 0.008  # of the processor, in each cycle: more than a time slice
WARM = 20  # cycles before growth is looked at


@dataclass
class Counters:
    """Steps begun and steps the device has finished, of every thread, as the program publishes them."""

    path: Path

    def read(self) -> list[tuple[int, int]]:
        return list(struct.iter_unpack("<2Q", self.path.read_bytes()))


@dataclass
class Storm:
    """Cycles at seeded random instants, and what was seen at each."""

    machine: Machine
    client: Client
    counters: Counters
    random: random.Random
    took: list[float] = field(default_factory=list)
    in_flight: int = 0  # cuts at which some thread had begun more than the device had finished
    idle: int = 0  # cycles before which the program had done nothing since the last one
    uncovered: set[str] = field(default_factory=set)  # reasons for which bytes went with the driver's checkpoint
    growth: Growth | None = None
    slowness: list[float] = field(default_factory=list)  # of each cycle, while the program stood
    _last: int = 0

    def cycle(self) -> None:
        time.sleep(self.random.uniform(0.0, 0.01))
        now = self.counters.read()
        begun = sum(thread[0] for thread in now)
        self.idle += begun == self._last
        self._last = begun
        self.in_flight += any(thread[0] > thread[1] for thread in now)
        where, began = self.machine.where, time.monotonic()
        gone = self.client.request("checkpoint", {"target": "llm", **where.how}, timeout=60.0)
        left = time.monotonic()
        self.slowness.append(slowness())
        returns = time.monotonic()
        back = self.client.request("restore", {"target": "llm"}, timeout=60.0)
        self.took.append(left - began + time.monotonic() - returns)
        assert gone["state"] == where.suspended
        assert gone["vram_after_bytes"] == 0 or where.data_only or where.keeps_context
        assert back["state"] == "running"
        assert back["bytes"] == gone["bytes"] > 0
        self.uncovered.update(reason for process in gone["processes"] for reason in process["uncovered"])

    def watch(self, job: Victim) -> None:
        """Watches the growth of all processes from here on."""
        if self.growth is None:
            self.growth = Growth.of(self.machine, job)
        self.growth.look()

    def summary(self) -> str:
        middle, worst = statistics.median(self.took), max(self.took)
        grown = f"; growth: {self.growth.summary()}" if self.growth else ""
        return (
            f"{self.machine.where.name} (SIMULATED): {len(self.took)} cycles, {self.in_flight} with work in flight, "
            f"median {middle * 1000:.1f} ms, longest {worst * 1000:.0f} ms, "
            f"beside work that makes all {statistics.mean(self.slowness):.1f} times as slow{grown}"
        )


def slowness() -> float:
    """Returns how many times longer than alone a thread takes here now: seconds for each second of the processor."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() < used + YARDSTICK_S:
        pass
    return (time.monotonic() - began) / (time.thread_time() - used)


def storm(
    machine: Machine, cycles: int, seconds: float, seed: int, watched: bool = False, more: tuple[str, ...] = ()
) -> Storm:
    """Runs so many cycles, or as fit into `seconds`; then the program must find every word right, as a bare one."""
    counters = Counters(machine.folder / "progress")
    job = machine.run("llm", *load(machine, counters.path, seconds + 60, seed), *more, ready=False)
    until(lambda: counters.path.exists() and all(begun for begun, _ in counters.read()), 20, "its threads work")
    end = time.monotonic() + seconds
    with machine.connected() as client:
        run = Storm(machine, client, counters, random.Random(seed))
        while len(run.took) < cycles and time.monotonic() < end:
            run.cycle()
            if watched and len(run.took) > WARM:
                run.watch(job)
    job.supervisor.send_signal(signal.SIGUSR1)  # its threads come to an end now
    assert job.hear(60) == "ready"
    seen = job.ask()
    assert seen.startswith("verified digest")
    print(run.summary())
    assert seen == alone(machine, counters, seed, seconds, more)
    return run


def load(machine: Machine, progress: Path, seconds: float, seed: int) -> list[str]:
    words = ["--seconds", f"{seconds:g}", "--interactive", "--progress", str(progress)]
    return machine.allocating(*words, *same(machine, seed))


def alone(machine: Machine, counters: Counters, seed: int, seconds: float, more: tuple[str, ...]) -> str:
    """Returns the output of a bare run with as many steps a thread; it may take no longer."""
    steps = ",".join(str(begun) for begun, _ in counters.read())
    return machine.bare(
        *machine.allocating("--steps", steps, *same(machine, seed), *more), timeout=seconds + 60
    ).strip()


def same(machine: Machine, seed: int) -> list[str]:
    return [
        *("--threads", str(THREADS), "--seed", str(seed)),
        *("--kernels", str(sim_dir(machine.vendor) / "kernels.so")),
    ]


def judge(run: Storm, median: float, idle: float = 0.05) -> None:
    """`median`: seconds on a machine without other work, and more by as much as other work slows all down

    idle: the share of cycles before which the program may have got no turn
    """
    cycles, median = len(run.took), median * statistics.mean(run.slowness)
    assert run.in_flight > cycles // 2, run.summary()
    assert run.idle <= cycles * idle, run.summary()
    assert statistics.median(run.took) < median, run.summary()


@pytest.mark.alone
def test_cycles_under_load(machine: Machine) -> None:
    """A hundred, in as long as a busy machine may take for them."""
    run = storm(machine, cycles=100, seconds=60, seed=2)
    assert len(run.took) == 100
    judge(run, MEDIAN_CYCLE)


@everywhere(slow=[NVIDIA, AMD, AMD_QUIRKS])
def test_some_cycles_under_load(machine: Machine) -> None:
    run = storm(machine, cycles=12, seconds=60, seed=5)
    assert len(run.took) == 12
    judge(run, SLOWEST_CYCLE, idle=0.3)


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD, slow=True)], indirect=True)
def test_some_cycles_of_stream_ordered_memory(machine: Machine) -> None:
    machine.memory = 2 << 30  # bare, the simulated pools keep what was freed until its stream got there
    run = storm(machine, cycles=12, seconds=60, seed=6, more=("--ordered",))
    assert (len(run.took), run.uncovered) == (12, set())
    judge(run, SLOWEST_CYCLE, idle=0.3)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", [at(world, slow=True) for world in WORLDS], indirect=True)
def test_soak(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """`make soak`: a thousand cycles or as many as SOAK_CYCLES says, and nothing grows."""
    cycles = int(os.environ.get("SOAK_CYCLES", "1000"))
    run = storm(machine, cycles, seconds=3000, seed=3, watched=True)
    with capsys.disabled():
        print(f"\n{run.summary()}")
    assert len(run.took) == cycles
    judge(run, SLOWEST_CYCLE)
    assert run.growth
    run.growth.judge(lively=True)
