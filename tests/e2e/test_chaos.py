"""Several jobs, commands at random, and kill -9 of gcr's processes at random: no job's bytes are ever lost.

The requests are seeded; their timing is not. Part of `make soak`.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from machine import Machine, Victim
from worlds import NVIDIA, WORLDS, World, at

JOBS = 3
SECONDS = 40.0
BACK = 60.0  # seconds to the last restore
# A script that meets these may try again, or knows better than to; all others are bugs.
EXPECTED = {
    "wrong_state",
    "peer_gone",
    "daemon_died",
    "rolled_back",
    "deadline_passed",
    "no_context",
    "interrupted",
    "daemon_unavailable",
}
ALONE = [world for world in WORLDS if not world.keeps_context or world.data_only]  # the rest share no device


def ways(where: World) -> Sequence[Sequence[str]]:
    """Returns options of a checkpoint. The context stays, or leaves later, where the driver saves it from outside."""
    if where == NVIDIA:
        return (), ("--resident",), ("--data-only",), ("--data-only", "--resident")
    return (where.options,)


@dataclass
class Chaos:
    machine: Machine
    seed: int
    over: threading.Event = field(default_factory=threading.Event)
    seen: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)

    def command(self, name: str, seed: int) -> None:
        chance = random.Random(seed)
        while not self.over.wait(chance.uniform(0.0, 0.3)):
            command = chance.choice(("checkpoint", "restore"))
            options = chance.choice(ways(self.machine.where)) if command == "checkpoint" else ()
            answer = self.machine.gcr(command, name, *options)
            code = answer.body["error"]["code"] if answer.code else "done"
            self.seen[f"{command} {code}"] += 1
            if answer.code and code not in EXPECTED:
                self.odd.append(f"{name}: {command}: {answer.body['error']}")

    def kill(self) -> None:
        chance, end = random.Random(self.seed), time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.0, 3.0))
            which = chance.choice(("gcr.daemon", "gcr.worker", "gcr.control_helper"))
            for pid in self.machine.children(which):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.seen[f"kill {which}"] += 1

    def run(self, names: list[str]) -> None:
        threads = [
            threading.Thread(target=self.command, args=(name, self.seed * JOBS + number))
            for number, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        self.kill()
        self.over.set()
        for thread in threads:
            thread.join()

    def bring_back(self, job: Victim) -> None:
        end = time.monotonic() + BACK
        while time.monotonic() < end:
            state = (self.machine.job(job.name) or {}).get("state")
            if state == "running":
                return
            if state in ("suspended", "data_suspended"):
                self.machine.gcr("restore", job.name)
            time.sleep(0.2)
        raise AssertionError(f"{job.name} is {state} after {BACK:.0f} s: {dict(self.seen)}")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("machine", [at(world, slow=True) for world in ALONE], indirect=True)
def test_nothing_is_lost(machine: Machine, seed: int) -> None:
    jobs = [machine.told(f"job{n}", f"alloc {4 + 3 * n} 5000", f"alloc 3 {2000000 * (n + 1)}") for n in range(JOBS)]
    before = [job.ask() for job in jobs]
    chaos = Chaos(machine, seed)
    chaos.run([job.name for job in jobs])
    for job in jobs:
        chaos.bring_back(job)
    assert [job.ask() for job in jobs] == before
    assert not chaos.odd, chaos.odd
    assert chaos.seen["checkpoint done"] and chaos.seen["restore done"] and chaos.seen["kill gcr.daemon"], chaos.seen
