"""Runs one victim: first under gcr, swapped while it computes, then bare for the same number of steps.

The bare run comes last because the number of steps is known only when the last swap is over.
Several victims may start, end and run bare at once, but only the one that has the lane is swapped, and none works while
it waits for the lane: so a swap is measured with the device nearly to itself.
"""

import hashlib
import importlib.metadata
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import judging
from held import Held, Silent, Step, World, family
from overhead import start_daemon
from victims import Victim, compiler, program

from gcr.errors import GcrError
from gcr.rendezvous.client import Client

AT_ONCE = 4  # what is slow about most of them is starting
LANE_SECONDS = 25.0  # that one is expected to need the lane
LAST_SECONDS = 30.0  # for the bare run of the last one
MOST_ERRORS = 3
START_SECONDS = 150.0
STEP_SECONDS = 45.0  # without a step is a hang
SWAP_SECONDS = 60.0
END_SECONDS = 60.0
ALONE_SECONDS = 1.5  # at work before the first checkpoint
CHECKPOINT = ("vram_free_s", "stop_s", "drain_s", "control_s", "bytes", "strategy", "vram_after_bytes")
RESTORE = ("total_s", "refill_s", "control_s", "cold")
Lane = AbstractContextManager[object]
Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The number of swaps, and an act after each swap, while the program runs."""

    swaps: int
    after: Callable[[Held], None] = lambda _running: None


def run_all(victims: Sequence[Victim], world: World, folder: Path, seconds: float) -> Iterator[tuple[str, Result]]:
    """Names and results as they come. None is begun that could not end within so many seconds."""
    start_daemon()  # else it were the child of some victim's supervisor, and would die with it
    end, lane, in_lane = time.monotonic() + seconds, threading.Lock(), [LANE_SECONDS]

    def begin(victim: Victim) -> Result | None:
        if time.monotonic() + AT_ONCE * max(in_lane) + LAST_SECONDS > end:
            return None
        result = run(victim, world, folder, lane)
        in_lane.append(result["gcr"].get("lane_s", 0.0))
        return result

    with ThreadPoolExecutor(AT_ONCE) as several:
        running = {several.submit(begin, victim): victim for victim in victims}
        for done in as_completed(running):
            if (result := done.result()) is not None:
                yield running[done].name, result


def run(victim: Victim, world: World, folder: Path, lane: Lane, plan: Plan | None = None) -> Result:
    """Runs a victim; any error is in the result. `folder`: for compiled programs · `lane`: held while it is swapped."""
    began, shimmed, bare, plan = time.monotonic(), {"swaps": [], "errors": []}, {}, plan or Plan(victim.swaps)
    result: Result = {"version": "", "swaps_wanted": plan.swaps, "gcr": shimmed, "bare": bare}
    try:
        result["version"], command = version(victim), program(victim, folder)
        _under_gcr(victim, plan, command, world, lane, shimmed)
        bare |= _bare(command, world, shimmed)
        result["difference"] = difference(shimmed.pop("output"), bare.pop("output"))
    except Exception as error:  # one victim's must not be the others' end
        shimmed.pop("output", None)
        result["failed"] = f"{type(error).__name__}: {error}"[:6500]
    result["seconds"] = time.monotonic() - began
    return {"ok": not judging.faults(victim, result), **result}


def version(victim: Victim) -> str:
    """Returns the version of its module's distributions, or of its compiler; empty without either."""
    names = sorted(set(importlib.metadata.packages_distributions().get(victim.package, [])))
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names) or compiler(victim)


def _under_gcr(victim: Victim, plan: Plan, command: Sequence[str], world: World, lane: Lane, found: Result) -> None:
    """Writes what it finds into `found` as it comes: it is worth most where the program then fails."""
    job = f"victim-{victim.name}"
    with Held(command, world, job) as running:
        try:
            running.await_ready(START_SECONDS)
            found["held_bytes"] = _held_bytes(running, world)
            with lane:
                began = time.monotonic()
                try:
                    running.tell("on")
                    time.sleep(ALONE_SECONDS)
                    alone = len(running.steps)
                    _swap_often(victim, plan, job, running, found["swaps"], found["errors"])
                finally:
                    found["lane_s"] = time.monotonic() - began
            running.finish(END_SECONDS)
        except Silent as silent:
            raise Silent(f"under gcr: {silent}: {running.last_words()}") from silent
        found |= _outcome(running, running.steps[:alone])


def _held_bytes(running: Held, world: World) -> int:
    """Returns the bytes held by the program and its descendants, as the devices count them."""
    return sum(world.bytes_of(pid) for pid in (running.process.pid, *family(running.process.pid)))


def _swap_often(victim: Victim, plan: Plan, job: str, running: Held, found: list[Result], errors: list[Result]) -> None:
    """Each at a random instant after the program did something again."""
    chance = random.Random(victim.name)
    with Client.connect() as client:
        while len(found) < plan.swaps and len(errors) < MOST_ERRORS:
            running.await_step(STEP_SECONDS)
            time.sleep(chance.uniform(0.0, victim.gap))
            last, during = running.steps[-1], "checkpoint"
            try:
                out = client.request("checkpoint", {"target": job}, timeout=SWAP_SECONDS)
                during = "restore"
                back = client.request("restore", {"target": job}, timeout=SWAP_SECONDS)
            except GcrError as error:
                errors.append({"during": during, "code": error.code, "state": error.state, "message": str(error)[:500]})
                if during == "restore":
                    break
            else:
                found.append(_swap(out, back, last))
                plan.after(running)


def _swap(out: Result, back: Result, last: Step) -> Result:
    rows = out["processes"]
    uncovered: dict[str, int] = {}
    for reason, size in (item for row in rows for item in row["uncovered"].items()):
        uncovered[reason] = uncovered.get(reason, 0) + size
    return {
        **{f"out_{name}": out[name] for name in CHECKPOINT},
        **{f"in_{name}": back[name] for name in RESTORE},
        **{name: sum(row[name] for row in rows) for name in ("covered_bytes", "handles", "pinned_host_bytes")},
        "uncovered": uncovered,
        "step": last.number,
    }


def _bare(command: Sequence[str], world: World, shimmed: Result) -> Result:
    with Held(command, world, None) as running:
        try:
            running.await_ready(START_SECONDS)
            held = _held_bytes(running, world)
            running.tell(shimmed["done"])
            running.finish(END_SECONDS + shimmed["work_s"])
        except Silent as silent:
            raise Silent(f"bare: {silent}: {running.last_words()}") from silent
        return {"held_bytes": held, **_outcome(running, _as_far(running.steps, shimmed["rated_step"]))}


def _as_far(steps: Sequence[Step], number: int) -> list[Step]:
    return [step for step in steps if step.number <= number]


def _outcome(running: Held, rated: Sequence[Step]) -> Result:
    """`rated`: the steps that its rate is taken from."""
    output = "".join(running.stdout)
    return {
        "exit": running.process.returncode,
        "done": running.done(),
        "work_s": running.steps[-1].at - running.steps[0].at if running.steps else 0.0,
        "rated_step": rated[-1].number if rated else 0,
        "steps_per_s": _rate(rated),
        "output": output,
        "output_sha256": hashlib.sha256(output.encode()).hexdigest(),
        "said": running.last_words() if running.process.returncode else "",
    }


def _rate(steps: Sequence[Step]) -> float | None:
    if len(steps) < 2 or steps[-1].at == steps[0].at:
        return None
    return (steps[-1].number - steps[0].number) / (steps[-1].at - steps[0].at)


def difference(shimmed: str, bare: str) -> str:
    """The first line that is not the same; empty if there is none."""
    one, other = bare.splitlines(), shimmed.splitlines()
    for number in range(max(len(one), len(other))):
        pair = [lines[number] if number < len(lines) else "nothing" for lines in (one, other)]
        if pair[0] != pair[1]:
            return f"line {number + 1}: bare {pair[0][:200]!r}, under gcr {pair[1][:200]!r}"
    return ""
