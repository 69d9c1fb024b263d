"""What gcr costs ranks that share device memory: rates of collectives and communicators, and swaps.

Rates: pairs of a bare job and one under gcr, which take turns. Both have the settings of NCCL that `gcr run` makes.
Swaps: a job with 16 GiB a rank; then, in turns, three jobs of two ranks that share no, some and all allocations.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from overhead import quiet, start_daemon
from program import Program, gcr
from slices import BARE, OTHER, turns
from stats import median
from swaps import CHECKPOINT, RESTORE

HERE = Path(__file__).resolve().parent
RANKS = (sys.executable, str(HERE / "sharing_program.py"))
HANDLES = (sys.executable, str(HERE / "handles_program.py"))
SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}

CONTROL = "control"  # a second bare program
OF_ALONE = (BARE, OTHER, CONTROL)
PAIRS = 3
PAIRS_ALONE, TURNS_ALONE = 8, 12  # of all_reduces that are waited for
TURNS, TURNS_OF_STARTS = 8, 4  # of each program of a pair, even
GIB = 1 << 30
LARGE, QUEUED, QUEUES, ALONE, MORE = 30, 100, 5, 400, 2  # a turn's all_reduces and communicators
LEAST_RATE = 0.99
MORE_START, MORE_START_S = 0.10, 0.100  # share and seconds: the larger one counts
PREPARE_SECONDS = 20.0

SWAP_GIB, CYCLES = 16.0, 6  # the first cycle is not counted
SETTLE_SECONDS = 8.0  # for gcr to prepare
OUT_S, IN_S, BEYOND_S = 1.0, 0.8, 0.2
MANY_S, MANY_SHARE, MANY_BEYOND_S = 3.0, 0.8, 0.5  # of more than two devices
ALL_HANDLES, SHARED = 800, (0, 200, 800)
MOST_PER_HANDLE = 150e-6  # seconds
Result = dict[str, Any]
Row = dict[str, Any]


# ---- rates ------------------------------------------------------------------------------------------------------


def rates(run_flags: Sequence[str] = (), pairs: int = PAIRS, size: int = GIB, ranks: int = 2) -> Result:
    """Samples of each pair and program, by what was done; the medians of all; and the goals."""
    start_daemon()
    with ExitStack() as stack:
        programs = _pairs(stack, pairs, run_flags, ranks)
        found = [_starts(pair, number) for number, pair in enumerate(programs)]
        _settle()
        for number, pair in enumerate(programs):
            _turns(pair, number, found[number], size)
    return judged(found, size)


def _pairs(
    stack: ExitStack, count: int, run_flags: Sequence[str], ranks: int, of: Sequence[str] = (BARE, OTHER)
) -> list[dict[str, Program]]:
    """Starts so many pairs of programs, or sets `of` more, all at once, and waits until they are ready."""
    found = [
        {which: stack.enter_context(_started(which, number, run_flags, ranks)) for which in of}
        for number in range(count)
    ]
    for program in (each for pair in found for each in pair.values()):
        program.await_ready()
    return found


def _started(which: str, number: int, run_flags: Sequence[str], ranks: int) -> Program:
    job = f"rates-{number}" if which == OTHER else None
    return Program([*RANKS, "--ranks", str(ranks)], job, SETTINGS, run_flags, wait=False)


def _settle() -> None:
    """Waits until gcr's own processes have little to do."""
    end = time.monotonic() + PREPARE_SECONDS
    while time.monotonic() < end:
        status = gcr("daemon", "status")
        if quiet([int(each["pid"]) for each in (status, *status["workers"])]):
            return


def _order(number: int, count: int) -> Iterator[str]:
    """Yields the program that goes next, in turns. In every second pair the other program begins."""
    other = {BARE: OTHER, OTHER: BARE}
    return (other[which] if number % 2 else which for which in turns(count))


def _starts(pair: Mapping[str, Program], number: int) -> Row:
    """The first communicators of a program are samples of their own."""
    samples: Row = {which: {"first_start": [], "start": [], "more": []} for which in pair}
    for which in _order(number, TURNS_OF_STARTS):
        program, own = pair[which], samples[which]
        own["start" if own["first_start"] else "first_start"].append(slowest(_ask(program, "start")))
        own["more"] += [slowest(_ask(program, "more")) for _ in range(MORE)]
        _ask(program, "end")
    for program in pair.values():
        _ask(program, "start")
    return samples


def _turns(pair: Mapping[str, Program], number: int, samples: Row, size: int) -> None:
    for which in _order(number, TURNS):
        program, own = pair[which], samples[which]
        _more_of(own, "large", _ask(program, f"reduce {size} {LARGE}"))
        for _ in range(QUEUES):
            queued = _ask(program, f"queue {QUEUED}")
            _more_of(own, "queued_host", [rank["host_s"] for rank in queued])
            _more_of(own, "queued_device", [[rank["device_s"] / QUEUED] for rank in queued])
        _more_of(own, "alone", _ask(program, f"alone {ALONE}"))


def alone(run_flags: Sequence[str] = (), pairs: int = PAIRS_ALONE, turns: int = TURNS_ALONE, ranks: int = 2) -> Result:
    """Samples of all_reduces of 8 bytes that are waited for, each turn with a communicator of its own.

    Programs differ from each other, and so do communicators, by more than what gcr adds: so many pairs and turns. Each
    pair has a second bare program beside it, which shows by how much two differ without gcr.
    """
    start_daemon()
    with ExitStack() as stack:
        started = _pairs(stack, pairs, run_flags, ranks, OF_ALONE)
        found: list[Row] = [{which: [] for which in OF_ALONE} for _ in started]
        for turn in range(turns):
            for number, programs in enumerate(started):
                for which in _rotated(turn + number):
                    found[number][which].append(_alone(programs[which]))
    return judged_alone(found)


def _rotated(number: int) -> Sequence[str]:
    """Returns the programs of a set in the order of this turn: each is first, in the middle and last as often."""
    begin = number % len(OF_ALONE)
    order = [*OF_ALONE[begin:], *OF_ALONE[:begin]]
    return order[::-1] if number // len(OF_ALONE) % 2 else order


def _alone(program: Program) -> float:
    """Returns the median of all ranks, with a new communicator."""
    _ask(program, "start")
    found = median([sample for rank in _ask(program, f"alone {ALONE}") for sample in rank])
    _ask(program, "end")
    return found


def judged_alone(sets: Sequence[Row]) -> Result:
    """Compares the sums of the medians' logarithms, so that a slow communicator counts as one of many.

    `spread`: the standard error of a share, by the differences between sets · `control`: of the second bare program
    """
    under, control = (_share_of(sets, which) for which in (OTHER, CONTROL))
    goals = [goal("alone: rate under gcr / bare", under["share"], f">= {LEAST_RATE}", under["share"] >= LEAST_RATE)]
    return {"samples": sets, **under, "control": control, "goals": goals, "ok": goals[0]["met"]}


def _share_of(sets: Sequence[Row], which: str) -> Row:
    shares = [fmean(log(bare / own) for bare, own in zip(each[BARE], each[which], strict=True)) for each in sets]
    share = exp(fmean(shares))
    spread = share * stdev(shares) / sqrt(len(shares))
    return {"share": share, "spread": spread, "by_pair": [exp(each) for each in shares]}


def _more_of(own: Row, name: str, of_ranks: Sequence[Sequence[float]]) -> None:
    """The samples of all ranks, one rank after the other."""
    own.setdefault(name, []).extend(sample for rank in of_ranks for sample in rank)


def _ask(program: Program, line: str) -> list[Any]:
    found: list[Any] = json.loads(program.ask(line))
    return found


def slowest(of_ranks: Sequence[float]) -> float:
    return max(of_ranks)


def judged(pairs: Sequence[Row], size: int) -> Result:
    medians = {
        which: {name: median([sample for pair in pairs for sample in pair[which][name]]) for name in pairs[0][which]}
        for which in (BARE, OTHER)
    }
    goals = [*_of_rates(medians), *_of_starts(medians)]
    by_pair = [{name: median(pair[BARE][name]) / median(pair[OTHER][name]) for name in pair[BARE]} for pair in pairs]
    bytes_per_s = {which: size / medians[which]["large"] for which in medians}
    facts = {"medians_s": medians, "bytes_per_s": bytes_per_s, "bare_to_gcr_by_pair": by_pair}
    return {"samples": pairs, "settings": SETTINGS, **facts, "goals": goals, "ok": all(each["met"] for each in goals)}


def _of_rates(medians: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    for name in ("large", "queued_host", "queued_device", "alone"):
        share = medians[BARE][name] / medians[OTHER][name]
        yield goal(f"{name}: rate under gcr / bare", share, f">= {LEAST_RATE}", share >= LEAST_RATE)


def _of_starts(medians: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    for name in ("first_start", "start", "more"):
        bare, more = medians[BARE][name], medians[OTHER][name] - medians[BARE][name]
        most = max(MORE_START * bare, MORE_START_S)
        yield goal(f"{name}: seconds more than bare", more, f"<= {most:.3f}", more <= most)


def goal(what: str, value: float, wanted: str, met: bool) -> Row:
    return {"what": what, "value": value, "goal": wanted, "met": met}


# ---- swaps ------------------------------------------------------------------------------------------------------


def filled(
    run_flags: Sequence[str] = (), gib: float = SWAP_GIB, cycles: int = CYCLES, ranks: int = 2, bound: Row | None = None
) -> Result:
    """Swaps ranks that each hold so much, while they do all_reduces.

    bound: what `link.at_once` measured; then the goals are those of many devices
    """
    goals = _of_filled if bound is None else partial(_of_many, bound)
    return {**with_goals(_swaps_of_filled(run_flags, gib, cycles, ranks), goals), "links": bound}


def _swaps_of_filled(run_flags: Sequence[str], gib: float, cycles: int, ranks: int) -> Iterator[Row]:
    start_daemon()
    command = [*RANKS, "--busy", "--gib", str(gib), "--ranks", str(ranks)]
    with Program(command, "filled", SETTINGS, run_flags) as program:
        time.sleep(SETTLE_SECONDS)
        before = program.ask("digest")
        for number in range(cycles):
            yield {"cycle": number, **swapped(program, before)}


def handles(run_flags: Sequence[str] = (), cycles: int = CYCLES, more: Sequence[str] = ()) -> Result:
    """Swaps jobs of which each holds the same number of allocations, and shares another part of them."""
    return with_goals(_swaps_of_handles(run_flags, cycles, more), _of_handles)


def _swaps_of_handles(run_flags: Sequence[str], cycles: int, more: Sequence[str]) -> Iterator[Row]:
    start_daemon()
    with ExitStack() as stack:
        programs = {shared: stack.enter_context(_sharing(shared, run_flags, more)) for shared in SHARED}
        time.sleep(SETTLE_SECONDS)
        for number in range(cycles):
            for shared, program in programs.items():
                program.ask("write")
                yield {"cycle": number, "shared": shared, **swapped(program, program.ask("digest"))}


def _sharing(shared: int, run_flags: Sequence[str], more: Sequence[str]) -> Program:
    command = [*HANDLES, f"--handles={ALL_HANDLES}", f"--shared={shared}", *more]
    return Program(command, f"handles-{shared}", flags=run_flags)


def swapped(program: Program, before: str) -> Row:
    out = gcr("checkpoint", str(program.job))
    back = gcr("restore", str(program.job))
    return {
        **{f"out_{name}": out.get(name) for name in (*CHECKPOINT, "vram_after_bytes")},
        "handles": sum(each["handles"] for each in out["processes"]),
        "processes": len(out["processes"]),
        **{f"in_{name}": back.get(name) for name in RESTORE},
        "bytes_right": program.ask("digest") == before,
    }


def with_goals(made: Iterator[Row], goals_of: Callable[[Sequence[Row]], Iterator[Row]]) -> Result:
    """Judges all cycles but the first, which is a warm-up; the bytes of all. An error ends it, and is in the result."""
    rows, failed = gathered(made)
    counted = [row for row in rows if row["cycle"]]
    if failed or not counted:
        return {"rows": rows, "failed": failed, "ok": False}
    wrong = sum(not row["bytes_right"] for row in rows)
    left = max(row["out_vram_after_bytes"] for row in rows)
    goals = [
        goal("cycles with a wrong byte", wrong, "0", not wrong),
        goal("bytes left on the devices", left, "0", not left),
        *goals_of(counted),
    ]
    return {"rows": rows, "medians": medians_of(counted), "goals": goals, "ok": all(each["met"] for each in goals)}


def gathered(made: Iterator[Row]) -> tuple[list[Row], str]:
    """Returns the rows until the benchmark ends, and the error if one ends it."""
    rows = []
    try:
        for row in made:
            rows.append(row)
    except SystemExit as failed:
        return rows, str(failed)[:2000]
    return rows, ""


def medians_of(rows: Sequence[Row]) -> Mapping[str, float]:
    names = [name for name, value in rows[0].items() if name.endswith("_s") and isinstance(value, float)]
    return {name: median([row[name] for row in rows]) for name in names}


def _of_filled(rows: Sequence[Row]) -> Iterator[Row]:
    found = medians_of(rows)
    for what, name, copy, least in (
        ("out", "out_vram_free_s", "out_drain_s", OUT_S),
        ("in", "in_total_s", "in_refill_s", IN_S),
    ):
        most = max(found[copy], least) + BEYOND_S
        yield goal(f"{what}: seconds", found[name], f"<= {most:.3f}", found[name] <= most)


def _of_many(bound: Row, rows: Sequence[Row]) -> Iterator[Row]:
    """The devices share the host's memory: a swap may take as long as copies at 0.8 of its rate."""
    found = medians_of(rows)
    for what, name, copy, link in (
        ("out", "out_vram_free_s", "out_drain_s", "device_to_host_bytes_per_s"),
        ("in", "in_total_s", "in_refill_s", "host_to_device_bytes_per_s"),
    ):
        took, beyond = found[name], found[name] - found[copy]
        share = rows[0]["out_bytes"] / found[copy] / bound[link]
        what_of = f"{what}: seconds, copied at {share:.3f} of the rate of plain copies at once"
        yield goal(what_of, took, f"<= {MANY_S}, or a rate of {MANY_SHARE}", took <= MANY_S or share >= MANY_SHARE)
        yield goal(f"{what}: seconds beyond the copy", beyond, f"<= {MANY_BEYOND_S}", beyond <= MANY_BEYOND_S)


def _of_handles(rows: Sequence[Row]) -> Iterator[Row]:
    of = {shared: medians_of([row for row in rows if row["shared"] == shared]) for shared in SHARED}
    few, *_, many = SHARED
    for name in ("out_vram_free_s", "out_stop_s", "in_total_s"):
        cost = (of[many][name] - of[few][name]) / (many - few)
        yield goal(f"{name}: seconds a shared handle", cost, f"<= {MOST_PER_HANDLE}", cost <= MOST_PER_HANDLE)
