"""Ranks that share device memory, at what few jobs go through: standstills at random instants, a failure at each step,
devices that change places, a suspension that is longer than the heartbeat of PyTorch's watchdog.

Whatever is done to a job, its output must be that of a bare run of as many steps.
"""

import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import swapping
from held import Held, Silent, World
from overhead import start_daemon
from program import VICTIMS, gcr, stop_daemon

from gcr import faults
from gcr.errors import GcrError
from gcr.rendezvous.client import Client

JOB = "ranks"
DDP = (sys.executable, str(VICTIMS / "distributed_victim.py"), "--hold")
SAMPLES, GAP = 60, 0.1  # of a kind of program; seconds at most from a sign of work to the next checkpoint
KINDS = ("ddp", "fsdp", "tensor")  # of distributed_victim.py
MEDIAN_MS, MEDIAN_MS_OF_MANY, LAST_MS = 30.0, 50.0, 1000.0
STANDS = re.compile(rf"job {JOB}: stands still after ([\d.]+) ms, (\d+) admissions(.*)")
HEARTBEAT = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "10", "TORCH_NCCL_ENABLE_MONITORING": "1"}
SUSPENDED_SECONDS = 30.0
STEPS_AFTER = 3
ROUNDS = 2
OUT_STEPS = ("prepared", "stop", "quiesced", "handed_over", "locked", "frozen", "drained", "staged")
BACK_STEPS = ("room", "refilled", "back", "mapped")
INJECTED = faults.InjectedFault.code
Result = dict[str, Any]
Inject = Callable[[str], None]  # a rule of gcr.faults
Act = Callable[[Held, Inject, Result], None]  # writes what it finds as it comes


def ddp(ranks: int, *more: str) -> Sequence[str]:
    return [*DDP, "--ranks", str(ranks), *more]


def standstills_of_all(ranks: int) -> Result:
    """Standstills of each kind of program, each judged by itself."""
    most = MEDIAN_MS if ranks == 2 else MEDIAN_MS_OF_MANY
    found = {kind: standstills(ddp(ranks, "--kind", kind), most_ms=most) for kind in KINDS}
    return {"ok": all(each["ok"] for each in found.values()), "kinds": found}


def standstills(
    command: Sequence[str] = DDP, world: World | None = None, samples: int = SAMPLES, most_ms: float = MEDIAN_MS
) -> Result:
    """Each checkpoint is taken back as soon as all ranks stand still; gcr's log says how long that took."""

    def act(running: Held, inject: Inject, found: Result) -> None:
        chance, earlier = random.Random(JOB), len(list(_told()))
        found["unexpected"] = []
        for _ in range(samples):
            running.await_step(swapping.STEP_SECONDS)
            time.sleep(chance.uniform(0.0, GAP))
            inject("checkpoint.quiesced fail")
            if not failed_at(answer := asked("checkpoint"), "running"):
                found["unexpected"].append(answer)
        found.update(_judged(list(_told())[earlier:], samples, most_ms))

    return as_bare(command, world, act, lambda found: found["enough"] and found["met"] and not found["unexpected"])


def _told() -> Iterator[Result]:
    """What the daemon's log says of each standstill."""
    for file in Path(os.environ["XDG_STATE_HOME"]).rglob("*.log"):
        for ms, admissions, how in STANDS.findall(file.read_text(errors="replace")):
            yield {"ms": float(ms), "admissions": int(admissions), "how": how}


def _judged(found: Sequence[Result], samples: int, most_ms: float) -> Result:
    took = sorted(each["ms"] for each in found)
    if not took:
        return {"enough": False, "met": False}
    last = took[min(len(took) - 1, round(0.99 * len(took)))]
    facts = {"median_ms": median(took), "p99_ms": last, "most_ms": took[-1]}
    met = facts["median_ms"] <= most_ms and last <= LAST_MS
    return {"standstills": list(found), **facts, "most_median_ms": most_ms, "enough": len(took) == samples, "met": met}


def heartbeat(command: Sequence[str] = DDP, world: World | None = None, seconds: float = SUSPENDED_SECONDS) -> Result:
    """The job stays suspended for longer than the watchdog's heartbeat."""
    os.environ.update(HEARTBEAT)

    def act(running: Held, _: Inject, found: Result) -> None:
        found.update(settings=HEARTBEAT, suspended_s=seconds, out=asked("checkpoint"))
        time.sleep(seconds)
        found["back"] = asked("restore")
        goes_on(running)

    return as_bare(command, world, act, lambda found: not any("error" in found[way] for way in ("out", "back")))


def moves(command: Sequence[str] = DDP, world: World | None = None, rounds: int = ROUNDS) -> Result:
    """Moves each rank to the next device until it is back, so many rounds; then a swap fails at each step."""

    def act(running: Held, inject: Inject, found: Result) -> None:
        cases = found["cases"] = {}
        for number in range(rounds * len({device for _, device in places()})):
            cases[f"exchange {number}"] = exchanged(running)
        for step in OUT_STEPS:
            cases[f"checkpoint.{step}"] = fails_on_its_way_out(running, inject, step)
        for step in BACK_STEPS:
            cases[f"restore.{step}"] = fails_on_its_way_back(running, inject, step)

    return as_bare(command, world, act, lambda found: all(case["ok"] for case in found["cases"].values()))


def exchanged(running: Held) -> Result:
    """Each device takes what was on the one before. Comes back where it was if gcr refuses that."""
    before = places()
    used = sorted({device for _, device in before})
    wanted = dict(zip(used, [*used[1:], used[0]], strict=True))
    out, back = asked("checkpoint"), asked("restore", devices=wanted)
    if "error" in back:
        asked("restore")
    goes_on(running)
    after = places()
    right = after == sorted((pid, wanted[device]) for pid, device in before)
    return {"ok": right and back.get("moved") == wanted, "before": before, "after": after, "out": out, "back": back}


def fails_on_its_way_out(running: Held, inject: Inject, step: str) -> Result:
    inject(f"checkpoint.{step} fail")
    said = asked("checkpoint")
    goes_on(running)
    return {"ok": failed_at(said, "running"), "said": said}


def fails_on_its_way_back(running: Held, inject: Inject, step: str) -> Result:
    out = asked("checkpoint")
    inject(f"restore.{step} fail")
    said = asked("restore")
    back = asked("restore")
    goes_on(running)
    ok = said.get("state") == "suspended" and "injected" in said.get("message", "")
    return {"ok": ok and "error" not in {**out, **back}, "said": said, "back": back}


# ---- a job, and what is asked of gcr ------------------------------------------------------------------------------


def as_bare(command: Sequence[str], world: World | None, act: Act, right: Callable[[Result], bool]) -> Result:
    """Runs a program under gcr, and `act` meanwhile; then bare for as many steps. Any error is in the result."""
    found: Result = {}
    try:
        said = _under_gcr(command, world or World(), act, found)
        found["difference"] = swapping.difference(said, _bare(command, world or World(), found))
    except Exception as error:  # what was found before it is worth keeping
        return {**found, "failed": f"{type(error).__name__}: {error}"[:1500], "ok": False}
    same = not found["difference"] and not any(found["exits"])
    return {**found, "same_output": same, "ok": same and right(found)}


def _under_gcr(command: Sequence[str], world: World, act: Act, found: Result) -> str:
    """Returns the program's output."""
    with _faults() as inject, Held(command, world, JOB) as running:
        running.await_ready(swapping.START_SECONDS)
        running.tell("on")
        running.await_step(swapping.STEP_SECONDS)
        try:
            act(running, inject, found)
            running.finish(swapping.END_SECONDS)
        except Silent as silent:
            raise Silent(f"under gcr: {silent}: {running.last_words()}") from silent
        found.update(steps=running.done(), work_s=running.steps[-1].at - running.steps[0].at)
    found["exits"] = [running.process.returncode]
    return "".join(running.stdout)


def _bare(command: Sequence[str], world: World, found: Result) -> str:
    with Held(command, world, None) as running:
        running.await_ready(swapping.START_SECONDS)
        running.tell(found["steps"])
        running.finish(swapping.END_SECONDS + found["work_s"])
    found["exits"].append(running.process.returncode)
    found["bare_step_s"] = median(later.at - earlier.at for earlier, later in pairwise(running.steps))
    return "".join(running.stdout)


@contextmanager
def _faults() -> Iterator[Inject]:
    """A daemon that fails where it is told to; the daemon before it, which may not, ends."""
    stop_daemon()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "faults"
        os.environ[faults.VARIABLE] = str(rules)
        start_daemon()
        try:
            yield lambda rule: _write(rules, f"{rule}\n")
        finally:
            del os.environ[faults.VARIABLE]
            stop_daemon()


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def asked(command: str, **more: Any) -> Result:
    """Returns the report, or the error."""
    with Client.connect() as client:
        try:
            found = client.request(command, {"target": JOB, **more}, timeout=swapping.SWAP_SECONDS)
        except GcrError as error:
            return {"error": error.code, "state": error.state, "message": str(error)[:500]}
    return {name: value for name, value in found.items() if name != "processes"}


def failed_at(answer: Mapping[str, Any], state: str) -> bool:
    return (answer.get("error"), answer.get("state")) == (INJECTED, state)


def places() -> list[tuple[int, str]]:
    """Returns the devices of each process that has any."""
    (job,) = [job for job in gcr("ps")["jobs"] if job["job"] == JOB]
    return sorted((row["pid"], row["device"]) for row in job["processes"] if row.get("device"))


def goes_on(running: Held) -> None:
    for _ in range(STEPS_AFTER):
        running.await_step(swapping.STEP_SECONDS)
