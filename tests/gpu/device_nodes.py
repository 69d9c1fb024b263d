"""Two nodes on one machine, each with a daemon of its own: one cut over ranks that NCCL joins through sockets.

NCCL takes them for ranks of two hosts (NCCL_HOSTID). The program takes a number of steps, and is suspended and brought
back on both nodes at random instants; then the same steps are taken bare. With one GPU both ranks are on it, and r580
ends them after the first restore: docs/limitations.md, "A GPU that others use at the same time".
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import swapping
from held import Held, Silent, World
from program import GCR

from gcr.api.barriers import Barrier
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cluster.calls import Over
from gcr.cluster.calls import Result as Done
from gcr.cluster.nodes import SocketLink
from gcr.cluster.running import new_cut

JOB = "nodes"
VICTIM = Path(__file__).resolve().parents[1] / "victims" / "node_rank_victim.py"
STEPS, PAUSE, CUTS = 500, 0.02, 10
GAP_S = 0.6  # the longest time between a restore and the next cut
LONG_S = 20.0  # that the last suspension takes
STILL_S, LIMIT_S, END_S = 20.0, 60.0, 120.0
WORDS = 4000  # characters
Result = dict[str, Any]
Commands = Callable[[Path], Sequence[Sequence[str]]]


@dataclass
class Node:
    """A node's folder, which its daemon has everything in."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "run").mkdir(mode=0o700, parents=True)

    def link(self) -> SocketLink:
        return SocketLink(self.folder / "run" / "gcr" / "gcrd.sock")

    @property
    def place(self) -> Mapping[str, str]:
        runtime, state = str(self.folder / "run"), str(self.folder / "state")
        return {"XDG_RUNTIME_DIR": runtime, "XDG_STATE_HOME": state}

    def log(self) -> str:
        """Returns the end of what the daemon and its helpers wrote."""
        files = sorted((self.folder / "state" / "gcr").glob("*.log"))
        return "".join(path.read_text(errors="replace") for path in files)[-WORDS:]

    def daemon(self, word: str) -> None:
        words, env = [*GCR, "daemon", word], {**os.environ, **self.place}
        subprocess.run(words, env=env, capture_output=True, timeout=LIMIT_S, check=word == "start")


def ranks(meeting: Path, kind: str, *more: str) -> Sequence[Sequence[str]]:
    """Returns the program of each node."""
    shared = ("--hold", "--kind", kind, "--pause", str(PAUSE), "--meeting", str(meeting), *more)
    return [(sys.executable, str(VICTIM), "--rank", str(rank), *shared) for rank in range(2)]


def of_torch(kind: str) -> Result:
    """Runs a job of PyTorch, as the victim's `--kind` has it."""
    return check(lambda meeting: ranks(meeting, kind))


def check(
    commands: Commands, world: World | None = None, cuts: int = CUTS, steps: int = STEPS, long_s: float = LONG_S
) -> Result:
    """Returns the cuts, and whether both ranks printed what they print bare. Any error is in the result."""
    found: Result = {"cuts": [], "errors": []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            under = _under_gcr(commands(place / "first"), world or World(), place, found, (cuts, steps, long_s))
            bare = _bare(commands(place / "second"), world or World(), found, steps)
        except Exception as error:  # what was found before it is worth keeping
            return {**found, "failed": f"{type(error).__name__}: {error}", "ok": False}
    differences = [swapping.difference(one, other) for one, other in zip(under, bare, strict=True)]
    done = found["cuts"]
    ok = not any(differences) and not found["errors"] and not any(found["exits"]) and len(done) == cuts
    medians = {name: median(cut[name] for cut in done) for name in ("out_s", "back_s") if done}
    return {**found, "medians": medians, "led": sum(cut["led"] for cut in done), "differences": differences, "ok": ok}


def _under_gcr(
    commands: Sequence[Sequence[str]], world: World, folder: Path, found: Result, much: tuple[int, int, float]
) -> list[str]:
    """Returns the output of each rank."""
    cuts, steps, long_s = much
    with _nodes(folder) as nodes, ExitStack() as stack:
        running = [
            stack.enter_context(Held(command, world, JOB, node.place))
            for command, node in zip(commands, nodes, strict=True)
        ]
        try:
            _begin(running, steps)
            _cut_often(running, nodes, found, (cuts, long_s))
            return _ended(running, found)
        except Silent:
            found["last_words"] = [_last_words(each) for each in running]
            found["logs"] = [node.log() for node in nodes]
            raise


def _last_words(running: Held) -> Result:
    """Returns what a program said at the end, and its first errors: later ones follow from them."""
    errors = "".join(running.stderr)
    said = "".join(running.stdout)[-500:]
    return {"exit": running.process.poll(), "said": said, "first": errors[:WORDS], "last": errors[-WORDS:]}


@contextmanager
def _nodes(folder: Path) -> Iterator[Sequence[Node]]:
    nodes = [Node(folder / name) for name in ("one", "two")]
    try:
        for node in nodes:
            node.daemon("start")
        yield nodes
    finally:
        for node in nodes:
            node.daemon("stop")


def _begin(running: Sequence[Held], steps: int) -> None:
    for each in running:
        each.await_ready(swapping.START_SECONDS)
    for each in running:
        each.tell(str(steps))
    for each in running:
        each.await_step(swapping.STEP_SECONDS)


def _ended(running: Sequence[Held], found: Result) -> list[str]:
    for each in running:
        each.finish(END_S)
    found.setdefault("exits", []).extend(each.process.returncode for each in running)
    return ["".join(each.stdout) for each in running]


def _bare(commands: Sequence[Sequence[str]], world: World, found: Result, steps: int) -> list[str]:
    with ExitStack() as stack:
        running = [stack.enter_context(Held(command, world, None)) for command in commands]
        _begin(running, steps)
        return _ended(running, found)


def _cut_often(running: Sequence[Held], nodes: Sequence[Node], found: Result, much: tuple[int, float]) -> None:
    cuts, long_s = much
    chance = random.Random(JOB)
    while len(found["cuts"]) < cuts and len(found["errors"]) < swapping.MOST_ERRORS:
        for each in running:
            each.await_step(swapping.STEP_SECONDS)
        time.sleep(chance.uniform(0.0, GAP_S))
        last = len(found["cuts"]) == cuts - 1
        _once(nodes, found, long_s if last else 0.0)


def _once(nodes: Sequence[Node], found: Result, seconds: float) -> None:
    """Suspends the job over both nodes, waits, and brings it back."""
    began = time.monotonic()
    out = _over(nodes).checkpoint(CheckpointRequest(target=JOB, cut=new_cut(), timeout=LIMIT_S))
    out_s = time.monotonic() - began
    if _failed("checkpoint", out, found):
        return
    time.sleep(seconds)
    began = time.monotonic()
    back = _over(nodes).restore(RestoreRequest(target=JOB, cut=new_cut(), timeout=LIMIT_S))
    if _failed("restore", back, found):
        raise Silent(f"the job did not come back: {back.error}")
    phases = dict(out.report.phases_s)
    times = {"out_s": out_s, "suspended_s": seconds, "back_s": time.monotonic() - began}
    found["cuts"].append({**times, "led": Barrier.APART in phases, "phases_s": phases})


def _over(nodes: Sequence[Node]) -> Over:
    return Over({node.folder.name: node.link() for node in nodes}, STILL_S)


def _failed(during: str, done: Done, found: Result) -> bool:
    if done.error is None:
        return False
    code, message = done.error.code, str(done.error)[:1500]
    found["errors"].append({"during": during, "code": code, "message": message})
    return True
