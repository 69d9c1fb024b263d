"""What gcr costs a program that is never checkpointed: pairs of programs that take turns, see `slices`.

A few pairs are started at once. When all of them are ready, and pinned to the same cores, one pair after the other
takes short turns; a program whose turn it is not has nothing queued. The unit of the statistics is the pair: two equal
processes differ by a few percent for as long as they live, so many pairs with few turns say more than few with many;
but a slice of a step scatters by a tenth (a machine has its moods), and a pair costs seconds to start: then many turns.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from program import GCR, VICTIMS, Program, gcr, stop_daemon
from slices import BARE, OTHER, Estimate, Slice, estimate, log_ratio, parse, turns

from gcr.native import SHIM, shim_path

HERE = Path(__file__).resolve().parent
TRAINING = (sys.executable, str(HERE / "train_step.py"))
SLICES, STEP_SLICES, TRAIN_SLICES, ALLOC_SLICES = 6, 48, 6, 4
SLICE_SECONDS, STEP_SECONDS, TRAIN_SECONDS, ALLOC_SECONDS = 0.08, 0.05, 0.4, 0.1
ALLOC_SIZES = tuple(1 << shift for shift in (10, 15, 20, 25, 30))
PREPARE_SECONDS = 120.0
QUIET_SECONDS = 1.2  # more than the daemon's own round
QUIET_CPU = 0.05  # CPU seconds of daemon and workers within it
Pair = dict[str, Any]


class Arm(StrEnum):
    """What the other program of a pair is; the first is always bare."""

    SHIMMED = "shimmed"  # under `gcr run`, all preparation over
    INERT = "inert"  # the shim preloaded, no daemon
    NULL = "null"  # bare as well: the noise of the estimate itself
    BESIDE = "beside"  # the same bare program while an idle job of gcr, its daemon and worker are there


PROGRAMS = {  # of tests/victims, one step each
    "torch": "torch_victim.py",
    "expandable": "torch_victim.py --allocator expandable",
    "async": "torch_victim.py --allocator async",
    "graph": "graph_victim.py",
    "compile": "graph_victim.py --compile",
    "transformers": "generate_victim.py",
    "triton": "triton_victim.py",
    "cupy": "cupy_victim.py",
    "cupy-async": "cupy_victim.py --pool async",
    "jax": "jax_victim.py",
}
PROGRAM_SLICES, PROGRAM_SECONDS, PROGRAM_PAIRS = 8, 0.1, 20
PAIRS = {"launch": 160, "step": 60, "train": 24, "alloc": 20} | dict.fromkeys(PROGRAMS, PROGRAM_PAIRS)
BESIDE_PAIRS = 8
ENOUGH = 20  # pairs, for a verdict


@dataclass(frozen=True, slots=True)
class Workload:
    """`names`: of its slices; `slices`: of each name and program in a pair, even; `seconds` each, on `cores` cores.

    together: pairs that are started at once
    """

    command: tuple[str, ...]
    names: tuple[str, ...]
    slices: int
    seconds: float
    cores: int
    together: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # of `gcr run`


def pieces() -> dict[str, tuple[str, Arm]]:
    """By name: the kind of work, and the arm."""
    controls = {f"overhead-{kind}-{arm}": (kind, arm) for kind in ("launch", "step") for arm in Arm}
    shimmed = {f"overhead-{kind}": (kind, Arm.SHIMMED) for kind in PAIRS}
    return shimmed | {name: each for name, each in controls.items() if each[1] is not Arm.SHIMMED}


def wanted_pairs(kind: str, arm: Arm) -> int:
    return {Arm.SHIMMED: PAIRS[kind], Arm.BESIDE: BESIDE_PAIRS}.get(arm, PAIRS[kind] // 2)


def workload(kind: str, build: Path) -> Workload:
    """`launch`, `alloc` (a C program over the driver), training steps by PyTorch: `step` of short kernels, where the
    host is the limit, `train` of long ones; or one of PROGRAMS.

    All on one core, the thread of PyTorch's backward pass as well: with four each process had its own faster ones.
    """
    if kind == "step":
        return Workload((*TRAINING, "short"), ("step",), STEP_SLICES, STEP_SECONDS, 1, 6)
    if kind == "train":
        return Workload((*TRAINING, "busy"), ("busy-step",), TRAIN_SLICES, TRAIN_SECONDS, 1, 3)
    if kind in PROGRAMS:
        name, *more = PROGRAMS[kind].split()
        command = (sys.executable, str(VICTIMS / name), "--slices", *more)
        return Workload(command, (kind,), PROGRAM_SLICES, PROGRAM_SECONDS, 1, 10)
    program = str(compiled(build))
    if kind == "launch":
        return Workload((program, "launch"), ("launch",), SLICES, SLICE_SECONDS, 1, 10)
    sizes = tuple(map(str, ALLOC_SIZES))
    return Workload((program, "alloc", sizes[-1]), sizes, ALLOC_SLICES, ALLOC_SECONDS, 1)


def compiled(build: Path) -> Path:
    """driver_rates, built once."""
    program = build / "driver_rates"
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("benchmark: no C compiler")
        subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "driver_rates.c"), "-ldl"], check=True)
    return program


def more_pairs(arm: Arm, work: Workload, pairs: list[Pair], deadline: float, wanted: int) -> Iterator[list[Pair]]:
    """`pairs` and a few more, and so on, while there is time before `deadline`, up to `wanted`."""
    while len(pairs) < wanted and time.monotonic() < deadline:
        count = min(work.together, wanted - len(pairs))
        more = [beside(work, len(pairs))] if arm is Arm.BESIDE else side_by_side(arm, work, len(pairs), count)
        pairs = [*pairs, *more]
        yield pairs


def side_by_side(arm: Arm, work: Workload, first: int, count: int) -> list[Pair]:
    """Pairs of processes, the two of each take turns; `first`: the number of the first pair."""
    if arm is Arm.SHIMMED:
        start_daemon()
    with ExitStack() as stack:
        programs = [
            {which: stack.enter_context(_start(arm, which, work, number)) for which in _order(number)}
            for number in range(first, first + count)
        ]
        for which, program in (item for each in programs for item in each.items()):
            program.await_ready()
            _check_shim(program, which == OTHER and arm in (Arm.SHIMMED, Arm.INERT))
            pin(program.pid, work.cores)
        gcrs = _gcrs([each[OTHER] for each in programs]) if arm is Arm.SHIMMED else []
        return [_one_pair(each, work, gcrs) for each in programs]


def _one_pair(programs: Mapping[str, Program], work: Workload, gcrs: Sequence[int]) -> Pair:
    for program in programs.values():
        _take_all(program, work, BARE)  # warm, not counted
    began, used = time.monotonic(), cpu_seconds(gcrs)
    slices = {name: [_take(programs[which], work, name, which) for which in _turns(work)] for name in work.names}
    cost = {"gcr_cpu_s": cpu_seconds(gcrs) - used, "wall_s": time.monotonic() - began}
    return {"slices": _plain(slices), **(cost if gcrs else {})}


def beside(work: Workload, number: int) -> Pair:
    """One bare process; its turns are with and without gcr around it."""
    slices: dict[str, list[Slice]] = {name: [] for name in work.names}
    with Program(work.command, None, work.environment) as alone:
        _check_shim(alone, False)
        pin(alone.pid, work.cores)
        for which in _order(number):
            with company(work, number) if which == OTHER else solitude():
                _take_all(alone, work, which)  # warm again, not counted
                for _ in range(work.slices):
                    for name, taken in _take_all(alone, work, which).items():
                        slices[name].append(taken)
    return {"slices": _plain(slices)}


def _start(arm: Arm, which: str, work: Workload, number: int) -> Program:
    environment = {**work.environment, "PYTHONHASHSEED": str(number)}  # what it does to Python's speed, both have
    if which == OTHER and arm is Arm.INERT:
        environment["LD_PRELOAD"] = str(shim_path())
    job = f"overhead-{number}" if which == OTHER and arm is Arm.SHIMMED else None
    return Program(work.command, job, environment, work.flags, wait=False)


def _check_shim(program: Program, wanted: bool) -> None:
    """A bare program must be bare, and a shimmed one not. Ends the benchmark otherwise."""
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    if (SHIM in maps) != wanted:
        raise SystemExit(f"benchmark: {SHIM} is {'not ' if wanted else ''}in process {program.pid}")


def _order(number: int) -> tuple[str, str]:
    return (BARE, OTHER) if number % 2 == 0 else (OTHER, BARE)


def _turns(work: Workload) -> Iterator[str]:
    if work.slices % 2:
        raise ValueError(f"{work.slices} slices: turns A B B A need an even number")
    return turns(work.slices)


def _take(program: Program, work: Workload, name: str, which: str) -> Slice:
    return Slice(which, **json.loads(program.ask(f"{name} {work.seconds}")))


def _take_all(program: Program, work: Workload, which: str) -> dict[str, Slice]:
    return {name: _take(program, work, name, which) for name in work.names}


def _plain(slices: Mapping[str, Sequence[Slice]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(each) for each in taken] for name, taken in slices.items()}


def pin(pid: int, cores: int) -> None:
    """All threads of a process to the last `cores` cores: the same ones for both of a pair."""
    last = sorted(os.sched_getaffinity(0))[-cores:]
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), last)


# ---- gcr around a program ---------------------------------------------------------------------------------------


def start_daemon() -> None:
    subprocess.run([*GCR, "daemon", "start"], capture_output=True, timeout=PREPARE_SECONDS, check=True)


@contextmanager
def company(work: Workload, number: int) -> Iterator[None]:
    """An idle job beside, all its preparation over."""
    start_daemon()
    with Program(work.command, f"beside-{number}", flags=work.flags) as idle:
        _gcrs([idle])
        yield


@contextmanager
def solitude() -> Iterator[None]:
    """No process of gcr. Ends the benchmark when there is one still."""
    stop_daemon()
    if (status := gcr("daemon", "status"))["running"]:
        raise SystemExit(f"benchmark: daemon {status['pid']} still runs")
    yield


def _gcrs(programs: Sequence[Program]) -> list[int]:
    """The pids of daemon, workers and supervisors, once nothing is left to be prepared for the programs."""
    give_up = time.monotonic() + PREPARE_SECONDS
    while time.monotonic() < give_up:
        status, wanted = gcr("daemon", "status"), _covered([program.job for program in programs])
        pids = [int(each["pid"]) for each in (status, *status["workers"])]
        if status["workers"] and status["arena_pinned_bytes"] >= wanted and quiet(pids):
            return [*pids, *(program.supervisor for program in programs if program.supervisor)]
    raise SystemExit(f"benchmark: {PREPARE_SECONDS:.0f} s after the start gcr still prepares: {json.dumps(status)}")


def _covered(names: Sequence[str | None]) -> int:
    jobs = [job for job in gcr("ps")["jobs"] if job["job"] in names]
    return sum(process["covered_bytes"] for job in jobs for process in job["processes"])


def quiet(pids: Sequence[int]) -> bool:
    before = cpu_seconds(pids)
    time.sleep(QUIET_SECONDS)
    return cpu_seconds(pids) - before < QUIET_CPU


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time so far."""
    return sum(_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- what it says -----------------------------------------------------------------------------------------------


def estimates(pairs: Sequence[Pair]) -> dict[str, tuple[Estimate, Estimate]]:
    """By name: the loss of rate, interruptions included, and that of a typical operation. Two pairs at least."""
    parsed = [parse(each) for each in pairs]
    return {
        name: (
            estimate([log_ratio(each[name]) for each in parsed]),
            estimate([log_ratio(each[name], lambda one: one.typical_rate) for each in parsed]),
        )
        for name in (parsed[0] if len(parsed) > 1 else ())
    }


def describe(pairs: Sequence[Pair]) -> str:
    lines = [
        f"{name}: loss {rate.loss:.2%}, at most {rate.at_most:.2%}, scatter {rate.scatter:.2%}; "
        f"typical operation {typical.loss:.2%}, at most {typical.at_most:.2%}, scatter {typical.scatter:.2%}; "
        f"{rate.pairs} pairs"
        for name, (rate, typical) in estimates(pairs).items()
    ]
    busy = [each["gcr_cpu_s"] / each["wall_s"] for each in pairs if "gcr_cpu_s" in each]
    share = [f"gcr's own processes: {max(busy):.2%} of a core at most"] if busy else []
    return "\n".join([*lines, *share])
