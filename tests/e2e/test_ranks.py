"""Ranks of one job that share NCCL's segments: host memory, which each registers with its driver."""

import random
import sys
import threading
import time
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, Victim, until
from refusals import refused
from worlds import slowly

from gcr.native import sim_dir

RANKS = str(VICTIMS / "ranks_victim.py")
KERNELS = str(sim_dir("nvidia") / "kernels.so")
QUIESCE_S = 1.0  # one rank may wait for the other on its device: then the checkpoint is taken back
HEARTBEAT_S = 1.0
MOST_STUCK = 3  # for each swap


class Heard:
    """The lines that a job has said, read as they come."""

    def __init__(self, job: Victim) -> None:
        self.job, self.lines = job, list[str]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.job.supervisor.stdout
        self.lines.extend(iter(self.job.supervisor.stdout.readline, ""))

    def one_more(self) -> None:
        seen = len(self.lines)
        until(lambda: len(self.lines) > seen or None, 30, "another step")

    def to_the_end(self) -> list[str]:
        """Ends the program's input. Returns all that it said."""
        assert self.job.supervisor.stdin
        self.job.supervisor.stdin.close()
        assert self.job.supervisor.wait(60) == 0
        self._reader.join(10)
        return self.lines


@pytest.mark.parametrize("swaps", [8, slowly(60)])
def test_ranks_are_swapped_at_random_instants_and_compute_what_they_compute_bare(machine: Machine, swaps: int) -> None:
    machine.devices = 2
    machine.extra["GCR_QUIESCE_S"] = str(QUIESCE_S)
    command = [sys.executable, RANKS, "--kernels", KERNELS, "--hold"]
    job = machine.run("ranks", *command)
    ranks = machine.targets("ranks", 2)
    assert all(map(shares, ranks))
    job.tell("on")
    heard, chance, done, stuck = Heard(job), random.Random(swaps), 0, 0
    while done < swaps:
        heard.one_more()
        time.sleep(chance.uniform(0, 0.05))
        gone = machine.ask("checkpoint", "ranks")
        if gone.code:
            assert (gone.body["error"]["code"], gone.body["error"]["state"]) == ("stuck", "running"), gone.body
            stuck += 1
            assert stuck <= MOST_STUCK * swaps
            continue
        assert (gone.body["vram_after_bytes"], len(gone.body["processes"])) == (0, 2)
        back = machine.ask("restore", "ranks")
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        done += 1
    said = heard.to_the_end()
    steps = next(line.split()[1] for line in said if line.startswith("steps "))
    assert int(steps) >= swaps
    bare = machine.begin_bare(*command)
    bare.tell(steps)
    assert said == Heard(bare).to_the_end()


def test_a_watchdog_is_answered_while_the_job_is_suspended(machine: Machine) -> None:
    """Communication libraries end a process whose driver does not say for too long whether work has ended."""
    machine.devices = 2
    job = machine.run("ranks", sys.executable, RANKS, "--kernels", KERNELS, "--hold", "--heartbeat", str(HEARTBEAT_S))
    machine.targets("ranks", 2)
    job.tell("on")
    for _ in range(2):
        assert machine.gcr("checkpoint", "ranks").code == 0
        time.sleep(2.5 * HEARTBEAT_S)
        assert machine.gcr("restore", "ranks").code == 0
    Heard(job).to_the_end()


def test_a_rank_of_another_program_is_refused_as_before(machine: Machine) -> None:
    """Without the shim its segments are all that can be seen, and they may not be all there is."""
    machine.devices = 2
    command = [sys.executable, RANKS, "--kernels", KERNELS, "--interactive"]
    stranger = machine.begin_bare(*command)
    before = stranger.ask()
    rank = until(lambda: using_segments(machine), 10, "the ranks are there")[0]
    answer = machine.gcr("checkpoint", str(rank))
    assert "NCCL" in refused(answer, "unsupported_state")
    assert "gcr run" in answer.body["error"]["hint"]
    assert stranger.ask() == before


def using_segments(machine: Machine) -> list[int]:
    return [pid for pid in machine.children("ranks_victim.py") if shares(pid)]


def shares(pid: int) -> bool:
    return "/dev/shm/nccl-" in Path(f"/proc/{pid}/maps").read_text()
