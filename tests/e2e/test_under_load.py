"""Cycle after cycle at random instants, while threads of the program launch kernels, allocate and free.

The program checks every word of every array against a model of its own; its counters say whether a cut met work in
flight. Cycles go through one connection, so that what is measured is gcr and not the start of a command.
"""

import random
import signal
import statistics
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, until

from gcr.client import Client
from gcr.native import sim_dir

ALLOC = str(VICTIMS / "alloc_victim.py")
THREADS = 3
MEDIAN_CYCLE = 0.120  # seconds; 0.04 s on an idle machine of two cores, of which the program itself keeps one busy


@dataclass
class Counters:
    """Steps begun and steps the device has finished, of every thread, as the program publishes them."""

    path: Path

    def read(self) -> list[tuple[int, int]]:
        return list(struct.iter_unpack("<2Q", self.path.read_bytes()))


@dataclass
class Storm:
    """Cycles at seeded random instants, and what was seen at each."""

    client: Client
    counters: Counters
    random: random.Random
    took: list[float] = field(default_factory=list)
    in_flight: int = 0  # cuts at which some thread had begun more than the device had finished
    idle: int = 0  # cycles before which the program had done nothing since the last one
    _last: int = 0

    def cycle(self) -> None:
        time.sleep(self.random.uniform(0.0, 0.01))
        now = self.counters.read()
        begun = sum(thread[0] for thread in now)
        self.idle += begun == self._last
        self._last = begun
        self.in_flight += any(thread[0] > thread[1] for thread in now)
        began = time.monotonic()
        gone = self.client.request("checkpoint", {"target": "llm"}, timeout=60.0)
        back = self.client.request("restore", {"target": "llm"}, timeout=60.0)
        self.took.append(time.monotonic() - began)
        assert (gone["state"], gone["vram_after_bytes"]) == ("suspended", 0)
        assert back["state"] == "running"
        assert back["bytes"] == gone["bytes"] > 0

    def summary(self) -> str:
        middle, worst = statistics.median(self.took), max(self.took)
        return (
            f"{len(self.took)} cycles on the SIMULATED device: median {middle * 1000:.1f} ms, longest "
            f"{worst * 1000:.0f} ms; {self.in_flight} cuts with work in flight"
        )


def storm(machine: Machine, cycles: int, seconds: float, seed: int) -> Storm:
    """As many cycles as asked, or as fit into `seconds`; then the program must find every word right."""
    counters = Counters(machine.folder / "progress")
    job = machine.run("llm", sys.executable, ALLOC, *load(counters.path, seconds + 30, seed), ready=False)
    until(lambda: counters.path.exists() and all(begun for begun, _ in counters.read()), 20, "its threads work")
    end = time.monotonic() + seconds
    with machine.connected() as client:
        run = Storm(client, counters, random.Random(seed))
        while len(run.took) < cycles and time.monotonic() < end:
            run.cycle()
    job.supervisor.send_signal(signal.SIGUSR1)  # the program comes to its end now
    assert job.hear(30) == "verified"
    assert job.supervisor.wait(10) == 0
    print(run.summary())
    return run


def load(progress: Path, seconds: float, seed: int) -> list[str]:
    kernels = str(sim_dir("nvidia") / "kernels.so")
    words = ["--threads", str(THREADS), "--seconds", f"{seconds:g}", "--seed", str(seed), "--kernels", kernels]
    return [*words, "--progress", str(progress)]


def judge(run: Storm) -> None:
    cycles = len(run.took)
    assert run.in_flight > cycles // 2
    assert run.idle < cycles // 20 + 1
    assert statistics.median(run.took) < MEDIAN_CYCLE, run.summary()


@pytest.mark.alone
def test_cycles_under_load(machine: Machine) -> None:
    """As many of the thousand as fit into 45 seconds of a busy machine."""
    run = storm(machine, cycles=1000, seconds=45, seed=2)
    assert len(run.took) >= 300
    judge(run)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_thousand_cycles_under_load(machine: Machine) -> None:
    run = storm(machine, cycles=1000, seconds=300, seed=3)
    assert len(run.took) == 1000
    judge(run)
