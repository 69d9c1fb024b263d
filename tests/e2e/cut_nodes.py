"""Several nodes on one machine, each with a daemon, a state and simulated devices of its own, and a part of one job."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filed import Filed
from machine import VICTIMS, Machine, Victim, until

from gcr.api.answers import Ranks
from gcr.api.barriers import Barrier
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cluster.calls import Over, Result
from gcr.cluster.nodes import SocketLink, Told
from gcr.cluster.running import new_cut
from gcr.cutroot import Root, cut_name
from gcr.native import sim_dir

JOB = "train"
RANKS = 2  # of each node
STILL_S = 10.0  # of a coordinator
CUT_S = 3.0  # of a node, which gives up by itself then
KERNELS = str(sim_dir("nvidia") / "kernels.so")
CROWD, STEADY = str(VICTIMS / "crowd_victim.py"), str(VICTIMS / "steady_victim.py")
AT_REST = ("running", "suspended")
TAKEN_S = 60.0  # for which another program may have a pid of the job


class Watched(SocketLink):
    """A link that keeps the times at which its part came to barriers, by the clock of the test."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.came: dict[Barrier, float] = {}
        self.began = 0.0
        self.leads = 0  # orders to its ranks
        self.before: Callable[[Barrier], object] = lambda _barrier: None  # called at each barrier, before it is told
        self.drops: set[Barrier | None] = set()  # words that do not reach the node
        self.said: list[Barrier | None] = []  # None: it is given up

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        self.began = time.monotonic()
        return super().checkpoint(request, self._keeping(told), limit)

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport:
        return super().restore(request, self._keeping(told), limit)

    def lead(self, word: CutRequest) -> Ranks:
        self.leads += 1
        return super().lead(word)

    def say(self, word: CutRequest) -> None:
        if word.barrier not in self.drops:
            super().say(word)
        self.said.append(word.barrier)

    def _keeping(self, told: Told) -> Told:
        def hear(barrier: Barrier) -> None:
            self.came.setdefault(barrier, time.monotonic())
            self.before(barrier)
            told(barrier)

        return hear


@dataclass
class Nodes:
    """The nodes, and the job's part on each. `argv`: its program there."""

    machines: Sequence[Machine]
    parts: list[Victim | Filed] = field(default_factory=list)

    @classmethod
    def below(cls, folder: Path, number: int, name: str = "n") -> "Nodes":
        """name: others of one process need another one, since their devices are called after it"""
        machines = []
        for each in range(number):
            place = folder / f"{name}{each}"
            (place / "run").mkdir(mode=0o700, parents=True)
            extra = {"GCR_CUT_S": f"{CUT_S:g}", "GCR_STORE": str(place / "store")}
            machines.append(Machine(place, vendor="nvidia", extra=extra))
        return cls(machines)

    def close(self) -> None:
        for machine in self.machines:
            machine.close()

    def begin(self, *argv: str) -> None:
        """Starts the job: on each node some ranks. Without a program they have a little memory with words of theirs."""
        for machine in self.machines:
            part = machine.run(JOB, sys.executable, *(argv or (CROWD,)))
            if not argv:
                part.ask(f"spawn {RANKS}")
            machine.targets(JOB, RANKS)
            self.parts.append(part)

    def begin_filed(self, *argv: str) -> None:
        """Starts the job detached, so that CRIU can save its processes. Without a program as `begin`."""
        for machine in self.machines:
            part = Filed(machine, JOB, program=argv or (CROWD,))
            if not argv:
                part.ask(f"spawn {RANKS}")
            machine.targets(JOB, RANKS)
            self.parts.append(part)

    def begin_meeting(self, shared: Path) -> None:
        """Starts ranks that meet in kernels over all nodes, through host memory in a file."""
        program, ranks = str(VICTIMS / "meet_victim.py"), RANKS * len(self.machines)
        for number, machine in enumerate(self.machines):
            words = (str(ranks), KERNELS, str(shared), str(number * RANKS), str(RANKS))
            self.parts.append(machine.run(JOB, sys.executable, program, *words, ready=False))
        for part, machine in zip(self.parts, self.machines, strict=True):
            machine.ready(part)
            machine.targets(JOB, RANKS)

    # ---- asked of all ----------------------------------------------------------------------------------------------

    def are_right(self) -> None:
        """Every rank of the job, which runs, has the words that it wrote."""
        assert [part.ask() for part in self.parts] == [str(sum(range(1, RANKS + 1)))] * len(self.parts)

    def states(self) -> list[str]:
        """Returns the state of each node, once no command is under way there."""
        return [until(lambda m=machine: self._at_rest(m), 30, "the node is at rest") for machine in self.machines]

    @staticmethod
    def _at_rest(machine: Machine) -> str | None:
        machine.listens() or machine.daemon()
        row = machine.job(JOB)
        if row is None:
            ended = machine.gcr("ps", "--all").body["ended"]
            return next((each["state"] for each in ended if each["job"] == JOB and each["state"] == "stopped"), None)
        return row["state"] if row["state"] in AT_REST and not row["changing"] else None

    def none_is_left_out(self) -> str:
        """Has a new coordinator recover the job, brings it back, and checks it. Returns its state before that."""
        self.states()  # each daemon is there again
        settled = self.recover()
        assert settled.error is None, settled
        (state,) = {*self.states()}
        self.run_again()
        return state

    def run_again(self) -> None:
        if "suspended" in self.states():
            back = self.restore()
            assert (back.error, back.report.outcome) == (None, "done"), back
        assert {*self.states()} == {"running"}
        self.are_right()

    # ---- commands --------------------------------------------------------------------------------------------------

    def links(self) -> Mapping[str, Watched]:
        return {machine.folder.name: Watched(machine.socket) for machine in self.machines}

    def checkpoint(
        self, links: Mapping[str, Watched] | None = None, still_s: float = STILL_S, grace_s: float = 30.0, **more: Any
    ) -> Result:
        request = CheckpointRequest(target=JOB, **{"cut": new_cut(), "timeout": 30.0, **more})
        return Over(links or self.links(), still_s, grace_s).checkpoint(request)

    def restore(self, links: Mapping[str, Watched] | None = None) -> Result:
        request = RestoreRequest(target=JOB, cut=new_cut(), timeout=30.0)
        return Over(links or self.links(), STILL_S).restore(request)

    def image(self, name: str = "night", links: Mapping[str, Watched] | None = None, **more: Any) -> Result:
        """Makes an image of the job over all nodes; without other words the job is stopped."""
        cut = new_cut()
        how = more or {"stop": True}
        request = CheckpointRequest(target=JOB, cut=cut, image=cut_name(name, cut), timeout=30.0, **how)
        return Over(links or self.links(), STILL_S).checkpoint(request)

    def restore_image(self, name: str = "night", links: Mapping[str, Watched] | None = None) -> Result:
        def part_of(root: Root) -> RestoreRequest:
            return RestoreRequest(target=root.job, cut=new_cut(), timeout=30.0, image=root.name, revive=True)

        return Over(links or self.links(), STILL_S).restore_image(name, None, part_of)

    def come_back(self) -> Result:
        """Brings the job back from its image. The nodes share one space of pids: another program may have taken one."""
        end = time.monotonic() + TAKEN_S
        while is_taken(back := self.restore_image()) and time.monotonic() < end:
            assert {each.place for each in back.report.nodes} == {"stopped"}, back
        assert (back.error, back.report.outcome) == (None, "done"), back
        return back

    def recover(self) -> Result:
        return Over(self.links(), STILL_S).recover(RestoreRequest(target=JOB, timeout=30.0))

    def options(self) -> list[str]:
        """Returns the options of `gcr cluster` that name all nodes."""
        return [word for machine in self.machines for word in ("--node", str(machine.socket))]

    @contextmanager
    def suspended(self) -> Iterator[Result]:
        """Within the block the job is suspended by one cut."""
        done = self.checkpoint()
        assert done.error is None, done
        yield done
        self.none_is_left_out()


def is_taken(back: Result) -> bool:
    """Returns whether a node's processes were not made, since another one had an id of theirs, say."""
    return any(each.error and each.error["code"] == "not_restored" for each in back.report.nodes)
