"""A job of ranks that lend each other device memory (tests/victims/p2p_victim.py), and what it must say.

What must come of each line follows from the model (p2p_model.py), which knows nothing of gcr, and is compared at once.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growth import leads_to
from machine import VICTIMS, Answer, Machine, Victim

from gcr.native import sim_dir

sys.path.insert(0, str(VICTIMS))

from p2p_model import WAYS, Model

NAME = "llm"
SOON = 2.0  # seconds
CONTEXT = 64 << 10  # bytes here: all that a warm worker leaves on a device, and less than any memory of a rank
KERNELS = str(sim_dir("nvidia") / "kernels.so")
PROGRAM = str(VICTIMS / "p2p_victim.py")
GUEST = [sys.executable, str(VICTIMS / "guest_victim.py")]
FAULTS = ("prepared", "quiesced", "handed_over", "locked", "frozen", "drained", "staged")


def prepare(machine: Machine, devices: int, **environment: str) -> None:
    """Sets what a machine is like, before anything of it starts."""
    machine.devices = devices
    machine.extra |= {"GCR_SIM_CONTEXT_BYTES": str(CONTEXT), **environment}


def command(ranks: int, *more: str) -> list[str]:
    return [sys.executable, PROGRAM, "--kernels", KERNELS, "--ranks", str(ranks), *more]


@dataclass
class Group:
    machine: Machine
    victim: Victim
    model: Model
    guests: int = 0  # programs on the same devices that are none of the job's

    @classmethod
    def start(
        cls, machine: Machine, *more: str, ranks: int = 3, bare: bool = False, before: Sequence[str] = ()
    ) -> "Group":
        """Starts the ranks, on a device each unless `more` says otherwise, and lets them compute. before: as `env`."""
        prepare(machine, ranks + 1)
        words = [*before, *command(ranks, "--interactive", *more)]
        victim = machine.begin_bare(*words) if bare else machine.run(NAME, *words)
        group = cls(machine, victim, Model(ranks))
        group.ask("rounds")
        return group

    def ask(self, line: str) -> str:
        self.victim.tell(line)
        return self.hear(line)

    def hear(self, line: str) -> str:
        """Waits for the answer to a line, and looks at it."""
        said, right = self.victim.hear(), self.model.answer(line)
        assert said == right, f"{line}: {said}, and not {right}"
        return said

    def works(self) -> None:
        """Computes in all that is mapped, and looks at every byte."""
        self.ask("rounds")
        self.ask("?")

    def lends(self, *ways: str) -> None:
        """New memory is made, lent in each of these ways, and used; it stays."""
        for way in ways:
            self.ask(f"make {way}")
            self.ask(f"take {self.model.made - 1}")
        self.works()

    # ---- there and back ---------------------------------------------------------------------------------------

    def leave(self, *options: str) -> Answer:
        gone = self.machine.gcr("checkpoint", NAME, *options)
        ranks = len(self.model.ranks)
        is_away(self.machine, gone, ranks, self.guests + ("--data-only" in options) * ranks)
        return gone

    def come_back(self, *options: str) -> Answer:
        back = self.machine.gcr("restore", NAME, *options)
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        return back

    def swaps(self, *options: str) -> None:
        """Goes and comes; every byte is where it was, and all of it is used again. No descriptor is left behind."""
        before = self.descriptors()
        self.leave(*options)
        self.come_back()
        self.ask("?")
        self.works()
        self.has_no_more_descriptors(before)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Checks that a job refused within the block goes on unchanged."""
        self.ask("?")
        yield
        assert self.state() == "running"
        self.ask("?")
        self.works()

    # ---- as seen from outside ---------------------------------------------------------------------------------

    def state(self) -> str:
        found = self.machine.job(NAME)
        assert found
        return str(found["state"])

    def pid(self, rank: int) -> int:
        return pids(self.machine)[rank]

    def has_no_more_descriptors(self, than: Mapping[int, Counter[str]]) -> None:
        """Checks it as soon as no connection is being closed; a socket that was just in use may have gone since."""
        end = time.monotonic() + SOON
        while any(more := self.more_descriptors(than).values()) and time.monotonic() < end:
            time.sleep(0.02)
        assert not any(more), more

    def more_descriptors(self, than: Mapping[int, Counter[str]]) -> Mapping[int, Counter[str]]:
        return {rank: found - than[rank] for rank, found in self.descriptors().items()}

    def descriptors(self) -> Mapping[int, Counter[str]]:
        """Returns what the descriptors of each rank refer to, without the numbers that tell one from another."""
        return {rank: descriptors(pid) for rank, pid in pids(self.machine).items()}


def is_away(machine: Machine, gone: Answer, ranks: int, contexts: int = 0) -> None:
    """Checks that all ranks are suspended, and that the devices count no memory. `contexts`: that stay, of programs."""
    assert gone.code == 0, gone.body
    assert len(gone.body["processes"]) == ranks, gone.body
    stays = CONTEXT * (contexts + len(machine.children("gcr.worker")))
    assert (used := machine.used()) <= stays, f"{used} bytes are in use, and {stays} are of contexts"


def pids(machine: Machine) -> dict[int, int]:
    """Returns the process of each living rank."""
    found = {}
    for pid in machine.children("p2p_victim.py"):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = pid
    return found


def descriptors(pid: int) -> Counter[str]:
    links = [leads_to(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return Counter(link.partition(":[")[0] for link in links if link)


def driver_does(machine: Machine, *rules: str) -> None:
    (machine.simulated / "faults").write_text("".join(f"{rule}\n" for rule in rules))


def error_of(answer: Answer) -> dict[str, Any]:
    """Returns a typed error; fails for a success, and for an answer that is none."""
    assert answer.code in (3, 4, 5), answer.body
    error: dict[str, Any] = answer.body["error"]
    assert error["code"] and error["exit"] == answer.code, error
    return error


__all__ = [
    "CONTEXT",
    "FAULTS",
    "GUEST",
    "NAME",
    "WAYS",
    "Group",
    "Model",
    "command",
    "descriptors",
    "driver_does",
    "error_of",
    "is_away",
    "pids",
    "prepare",
]
