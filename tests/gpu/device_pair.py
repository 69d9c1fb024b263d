"""Two GPUs in one process, and restores onto others: through gcr, and what the driver itself answers.

Through gcr every byte must be right and the device's own count must say where it is. What the driver answers to a move
is recorded as it is, the refusals too: gcr's own (`gcr_nvidia/moving.py`, docs/limitations.md) rest on it.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import images
import whole
from program import Program, gcr

from gcr.control import ControlPhase
from gcr.errors import GcrError
from gcr_nvidia import devices
from gcr_nvidia.control import NvidiaControl

VICTIMS = Path(__file__).resolve().parents[1] / "victims"
PEERS = (sys.executable, str(VICTIMS / "peers_victim.py"), "--interactive", "--kernels", str(VICTIMS / "add.ptx"))
ONE = (sys.executable, str(VICTIMS / "vmm_victim.py"), "--interactive", "--mib", "512")
MIB = ("--mib", "512")
LARGE = (*ONE[:-1], "8192")  # the driver takes more than a second to bring it back
ORPHANED_AFTER, ORPHAN_SECONDS = 0.2, 10.0
CALLER = """
import sys
from gcr_nvidia.control import NvidiaControl
control = NvidiaControl()
control.phase(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
control.restore(int(sys.argv[1]), {}, 60.0)
"""
MORE_BYTES = 64 << 20  # that a device may have in use after a case, beyond what it had after the first
ENABLED = "704 704"  # peer access that is asked for again
SECONDS = 60.0
WHOLE_GIB = 8
Result = dict[str, Any]


def check(kernels: Path | None = None, flags: Sequence[str] = ()) -> Result:
    """`kernels` and `flags`: for a rehearsal on the simulator."""
    first, second = two()
    peers = [*PEERS, *MIB, *(("--kernels", str(kernels)) if kernels else ())]
    exchange = {first: second, second: first}
    cases: dict[str, Callable[[], Result]] = {
        "in place": lambda: pair(peers, flags, [{}, {}]),
        "exchanged": lambda: pair(peers, flags, [exchange, {}, exchange]),
        "onto the free one": lambda: single(flags, {}, first, second),
        "onto one that is hidden from it": lambda: single(flags, {"CUDA_VISIBLE_DEVICES": first}, first, second),
    }
    through, left = {}, {}
    for name, case in cases.items():
        through[name], left[name] = case(), in_use()
    grown = list(growth(left))
    right = all(found["ok"] for found in through.values()) and not grown
    return {"ok": right, "devices": [first, second], "gcr": through, "left_bytes": left, "grown": grown}


def growth(left: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yields the growth of a device's used bytes after a case, since the first, when each device has its worker."""
    first = next(iter(left.values()))
    for name, used in left.items():
        for uuid, most in first.items():
            if used[uuid] > most + MORE_BYTES:
                yield f"{name}: {used[uuid]} bytes are in use on {uuid} afterwards, {most} after the first"


def ask_driver(kernels: Path | None = None) -> Result:
    """Asks the driver alone: an answer that differs from docs/benchmarks-history.md is news, not a failure."""
    first, second = two()
    peers = [*PEERS, *MIB, *(("--kernels", str(kernels)) if kernels else ())]
    exchange = {first: second, second: first}
    driver = {
        "both, in place": asked(peers, {}, {}),
        "both, exchanged": asked(peers, {}, exchange),
        "one, both named": asked(ONE, {}, exchange),
        "one, it alone named": asked(ONE, {}, {first: second}),
        "one, named as it was": asked(ONE, {}, {first: first}),
        "one, the other hidden, both named": asked(ONE, {"CUDA_VISIBLE_DEVICES": first}, exchange),
        "one, the other hidden, it alone named": asked(ONE, {"CUDA_VISIBLE_DEVICES": first}, {first: second}),
        "a restore whose caller was killed": orphaned(),
    }
    return {"ok": True, "devices": [first, second], "driver": driver}


def two() -> tuple[str, str]:
    uuids = [device.uuid for device in devices.present()]
    if len(uuids) < 2:
        raise SystemExit(f"two devices are needed, here are {len(uuids)}")
    return uuids[0], uuids[1]


def recorded(attempt: Callable[..., Result]) -> Callable[..., Result]:
    """Records the error that ends an attempt as its result; the others are made all the same."""

    def made(*arguments: Any) -> Result:
        try:
            found = attempt(*arguments)
        except (SystemExit, GcrError) as failed:
            found = {"ok": False, "error": str(failed)[:700]}
        print(attempt.__name__, found, flush=True)
        return found

    return made


@recorded
def pair(command: Sequence[str], flags: Sequence[str], restores: Sequence[Mapping[str, str]]) -> Result:
    """Peer-mapped memory on both; the same steps as bare, with a checkpoint and a restore in between."""
    with Program(command, None) as bare:
        bare.ask(f"step {5 * (len(restores) + 1)}")
        expected = bare.ask()
    with Program(command, "pair", flags=flags) as program:
        program.ask("step 5")
        rounds = []
        for moves in restores:
            rounds.append(cycle(program, moves))
            program.ask("step 5")
        said = program.ask()
    right = all(one["left"] == 0 and one["peers"] == ENABLED for one in rounds)
    return {"ok": said == expected and right, "same_output": said == expected, "rounds": rounds}


@recorded
def single(flags: Sequence[str], environment: Mapping[str, str], first: str, second: str) -> Result:
    """Moves a program from one device to the other, and back."""
    with Program(ONE, "single", environment, flags) as program:
        before, rounds = program.ask(), []
        for old, new in ((first, second), (second, first)):
            rounds.append(cycle(program, {old: new}) | {"wanted": new})
        after = program.ask()
    right = all(one["left"] == 0 and one["rows"] == [one["wanted"]] for one in rounds)
    return {"ok": before == after and right, "same_output": before == after, "rounds": rounds}


def cycle(program: Program, moves: Mapping[str, str]) -> Result:
    assert program.job
    used = in_use()
    out = gcr("checkpoint", program.job)
    left, gone = sum(devices.bytes_of(program.pid).values()), in_use()
    words = [word for old, new in moves.items() for word in ("--device", f"{old}={new}")]
    back = gcr("restore", program.job, *words)
    (job,) = [job for job in gcr("ps")["jobs"] if job["job"] == program.job]
    talks = program.job == "pair"
    return {
        "left": left,
        "used_bytes": {"before": used, "suspended": gone, "after": in_use()},
        "rows": [row["device"] for row in job["processes"]],
        "moved": back["moved"],
        "where": program.ask("where") if talks else None,
        "peers": program.ask("peers") if talks else None,
        **{name: out[name] for name in ("bytes", "vram_free_s", "control_s")},
        "total_s": back["total_s"],
    }


def in_use() -> dict[str, int]:
    return {device.uuid: device.used_bytes for device in devices.present()}


def stopped() -> Result:
    """A job of 8 GiB that is stopped into an image comes back on the other device, for three generations."""
    both = two()
    found = whole.onto_others(images.program(WHOLE_GIB), both, lambda device: in_use()[device])
    return {"ok": all(map(_came, found["generations"])), "devices": both, **found}


def _came(generation: Result) -> bool:
    came = dict(generation["came_bytes"])
    there = came.pop(generation["onto"])
    left = max(generation["left_bytes"].values())
    return generation["right"] and there >= WHOLE_GIB << 30 and max(left, *came.values()) <= MORE_BYTES


@recorded
def asked(command: Sequence[str], environment: Mapping[str, str], pairs: Mapping[str, str]) -> Result:
    """The driver's own checkpoint of a program without gcr, restored with these pairs; without any if it refuses."""
    control = NvidiaControl()
    with Program(command, None, environment) as program:
        before, found = program.ask(), {"pairs": dict(pairs)}
        control.lock(program.pid, SECONDS)
        control.checkpoint(program.pid, SECONDS)
        found["answer"] = answer(lambda: control.restore(program.pid, pairs, SECONDS))
        found["phase"] = control.phase(program.pid).value
        if control.phase(program.pid) is ControlPhase.CHECKPOINTED:
            found["without_pairs"] = answer(lambda: control.restore(program.pid, {}, SECONDS))
        found["unlock"] = answer(lambda: control.unlock(program.pid, SECONDS))
        if found["unlock"] == "ok":
            found["same_output"] = program.ask() == before
            found["counted_on"] = devices.bytes_of(program.pid)
            found["where"] = program.ask("where") if tuple(command) != ONE else None
    return found


@recorded
def orphaned() -> Result:
    """Records the driver's phases of a process after the caller of its restore was killed."""
    control = NvidiaControl()
    with Program(LARGE, None) as program:
        before = program.ask()
        control.lock(program.pid, SECONDS)
        control.checkpoint(program.pid, SECONDS)
        caller = subprocess.Popen(
            [sys.executable, "-c", CALLER, str(program.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert caller.stdin and caller.stdout and caller.stdout.readline() == b"ready\n"
        caller.stdin.write(b"\n")
        caller.stdin.flush()
        time.sleep(ORPHANED_AFTER)
        caller.kill()
        ended, killed, phases = caller.wait(), time.monotonic(), []
        while time.monotonic() - killed < SECONDS and phases[-1:] != [ControlPhase.LOCKED.value]:
            phase = control.phase(program.pid).value
            if phases[-1:] != [phase]:
                phases.append(phase)
            if phase == ControlPhase.CHECKPOINTED.value and time.monotonic() - killed > ORPHAN_SECONDS:
                break
        found = {"phases": phases, "after_s": time.monotonic() - killed, "ended_by": -ended}
        if control.phase(program.pid) is ControlPhase.CHECKPOINTED:
            found["again"] = answer(lambda: control.restore(program.pid, {}, SECONDS))
        found["unlock"] = answer(lambda: control.unlock(program.pid, SECONDS))
        found["same_output"] = program.ask() == before
    return found


def answer(call: Callable[[], object]) -> str:
    try:
        call()
    except GcrError as refused:
        return refused.message
    return "ok"
