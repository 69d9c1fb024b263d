"""Six shapes of program are stopped at random instants: one standstill each, or rolled back with a name."""

import re
import sys
import time
from collections.abc import Sequence
from random import Random

import pytest
from machine import VICTIMS, Answer, Machine, until
from worlds import SLOW, slowly

from gcr.native import sim_dir

sys.path.insert(0, str(VICTIMS))

from shapes_victim import SHAPES

NAME = "shape"
PROGRAM = str(VICTIMS / "shapes_victim.py")
KERNELS = str(sim_dir("nvidia") / "kernels.so")
INSTANTS = 834  # of each shape: 5,004 in all
QUIESCE_S = "10"  # unless it is set
MISSED = 0.005  # share of the instants at most that may be rolled back
NAMED = re.compile(r"process (\d+) waits in \w+ on stream 0x[0-9a-f]+")


class Shape:
    """A program that runs freely. `standstills`: seconds of those reached; `missed`: why it was rolled back."""

    def __init__(self, machine: Machine, shape: str) -> None:
        machine.devices = SHAPES[shape].RANKS
        self.machine, self.ranks = machine, SHAPES[shape].RANKS
        self.job = machine.run(NAME, sys.executable, PROGRAM, shape, KERNELS)
        self.pids = machine.targets(NAME, self.ranks)
        self.standstills: list[float] = []
        self.missed: list[str] = []
        self.goes_on()

    def steps(self) -> Sequence[int]:
        said = self.job.ask()
        assert not said.startswith("wrong"), said
        return [int(step) for step in said.split()]

    def goes_on(self) -> None:
        """Every lane has looked at its words once more, and all were right."""
        before = self.steps()
        until(lambda: all(a > b for a, b in zip(self.steps(), before, strict=True)) or None, 30, "all lanes go on")

    def stop(self) -> None:
        gone = self.machine.ask("checkpoint", NAME)
        if gone.code:
            self.is_rolled_back(gone)
            return
        assert (gone.body["vram_after_bytes"], len(gone.body["processes"])) == (0, self.ranks), gone.body
        phases = gone.body["phases_s"]
        self.standstills.append(phases["quiesced"] - phases["stop"])
        back = self.machine.ask("restore", NAME)
        assert (back.code, back.body.get("state")) == (0, "running"), back.body

    def stands(self) -> None:
        """Waits until no lane goes on by itself."""

        def same() -> bool:
            before = self.steps()
            time.sleep(0.3)
            return self.steps() == before

        until(same, 30, "all lanes wait for the rank that is held")

    def is_rolled_back(self, gone: Answer) -> None:
        error = gone.body["error"]
        assert (gone.code, error["code"], error["state"]) == (4, "stuck", "running"), error
        named = {int(pid) for pid in NAMED.findall(error["message"])}
        assert named and named <= set(self.pids), error
        self.missed.append(error["message"])

    def end(self) -> None:
        """The ranks end behind one step, each word of theirs was right, and so is the program's exit status."""
        self.job.tell("end")
        assert self.job.hear(patience=90) == "all right"
        assert self.job.supervisor.wait(30) == 0


@pytest.mark.parametrize(
    ("instants", "quiesce_s"),
    [(3, "30"), pytest.param(INSTANTS, QUIESCE_S, marks=[SLOW, pytest.mark.timeout(3000)])],
    ids=["some", "many"],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_comes_to_a_standstill_at_any_instant(
    machine: Machine, shape: str, instants: int, quiesce_s: str
) -> None:
    """The few have a later deadline, for all processors may be taken by other tests."""
    machine.extra["GCR_QUIESCE_S"] = quiesce_s
    program, chance = Shape(machine, shape), Random(f"{shape} {instants}")
    for _ in range(instants):
        time.sleep(chance.uniform(0, 0.08))
        program.stop()
        program.goes_on()
    program.end()
    assert len(program.missed) <= MISSED * instants, program.missed
    took = sorted(program.standstills)
    times = f"median {took[len(took) // 2] * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms"
    print(f"{shape}: {instants} instants, {len(took)} standstills, {times}", *program.missed, sep="\n")


@pytest.mark.parametrize("shape", ["threads", *map(slowly, ("buckets", "pipeline", "graphs", "copies"))])
def test_one_that_comes_to_none_is_rolled_back_with_a_name_and_goes_on(machine: Machine, shape: str) -> None:
    """One rank stays in its own code. Of lazily connected ranks the others may wait in theirs, and all stand."""
    machine.extra["GCR_QUIESCE_S"] = "1"
    program = Shape(machine, shape)
    program.job.ask("hold 1")
    program.stands()
    program.stop()
    assert len(program.missed) == 1
    program.job.ask("go")
    program.goes_on()
    program.end()
