"""One piece of tests/gpu/device.sh: runs it and leaves OUT/PIECE.json. Exit 1 when what it checks is not so."""

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "tests" / "contract" / "conformance"
sys.path[:0] = [str(ROOT / "benchmarks"), str(CONFORMANCE)]

import all_devices  # noqa: E402
import answers  # noqa: E402
import device_beside  # noqa: E402
import device_facts  # noqa: E402
import device_nodes  # noqa: E402
import device_pair  # noqa: E402
import device_ranks  # noqa: E402
import endings  # noqa: E402
import image_bursts as bursts  # noqa: E402
import image_ways as ways  # noqa: E402
import images  # noqa: E402
import judging  # noqa: E402
import overhead  # noqa: E402
import report  # noqa: E402
import serve_load  # noqa: E402
import serve_swaps  # noqa: E402
import sharing_jobs  # noqa: E402
import soak  # noqa: E402
import swap  # noqa: E402
import swapping  # noqa: E402
import testbed  # noqa: E402
from held import World  # noqa: E402
from program import GCR, Program, fill, gcr  # noqa: E402
from victims import EVERY, PIECES, compiled  # noqa: E402

from gcr.native import sim_dir  # noqa: E402
from gcr_nvidia import devices  # noqa: E402

BUDGET_SECONDS = 400.0
MIGRATE_GIB = 16.0  # its stores and arenas take four times that of host memory
BUSY = ("--launches", "200", "--parts", "4")  # of a step: some 25 ms, so about 1 % of the memory changes each second
PROGRAM_SECONDS = 150.0
SERVE_SWAPS = 1000
TESTS_AT_ONCE = "6"  # what is slow about them is starting
Result = dict[str, Any]


def smoke() -> Result:
    """A small PyTorch program out to VRAM 0 and back, every byte right."""
    with Program(fill(0.5), job="smoke") as program:
        before, held, used = program.ask(), testbed.bytes_of(program.pid), testbed.used_bytes()
        out = gcr("checkpoint", "smoke")
        left, freed = testbed.bytes_of(program.pid), used - testbed.used_bytes()
        back = gcr("restore", "smoke")
        after = program.ask()
    ok = 0 < out["bytes"] <= freed and left == 0 and before == after
    found = {"ok": ok, "held": held, "left": left, "freed": freed, "bytes_right": before == after}
    return {**found, "checkpoint": out, "restore": back}


def namespace() -> Result:
    """Runs the same in a pid namespace, as in a container: a driver may count a process under another pid."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, __file__, folder, "smoke"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}  # a daemon that lives there as well
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        found = Path(folder) / "smoke.json"
        inner: Result = json.loads(found.read_text())["result"] if found.exists() else {"ok": False}
    return {**inner, "exit": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}


def contract() -> Result:
    """The backend's contract on the device."""
    return _pytest(["tests/gpu"])


def deaths(of: str) -> Result:
    """kill -9 of gcr's processes at every step, on the device: what tests/e2e/test_deaths.py does on the simulator."""
    return _e2e(["tests/e2e/test_deaths.py"], "-k", of)


def faults() -> Result:
    """A failure at every step, and plain swaps, on the device."""
    return _e2e(["tests/e2e/test_faults.py", "tests/e2e/test_swap.py"])


def image_tests() -> Result:
    """Tests images of every kind on the device, and their fate when a process dies."""
    names = ("imaging", "image_failures", "image_waits", "incremental")
    return _e2e([f"tests/e2e/test_{name}.py" for name in names])


def live(of: str) -> Result:
    """Live images of a program that stamps all its memory, each of one moment; and deaths meanwhile."""
    return _e2e(["tests/e2e/test_live.py"], "-k", of, "--timeout", "400")


def _e2e(paths: Sequence[str], *flags: str) -> Result:
    os.environ["GCR_E2E_ON_DEVICE"] = "1"
    return _pytest(
        paths, "-m", "slow or not slow", "-p", "no:benchmark", "-n", TESTS_AT_ONCE, "--timeout", "120", *flags
    )


def conformance() -> Result:
    """The conformance program on the device bare, under gcr, and on the simulator: only what is listed differs."""
    program = str(compiled(sorted(CONFORMANCE.glob("*.c")), Path(os.environ["XDG_RUNTIME_DIR"]) / "cuda_conformance"))
    simulated = {"LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIM_STATE": os.environ["XDG_RUNTIME_DIR"]}
    bare = _lines([program], {})
    shimmed = _lines([*GCR, "run", "--name", "conformance", "--", program], {})
    simulator = _lines([program], simulated)
    against = {"gcr": _differences(answers.as_listed(bare), shimmed), "simulator": _differences(bare, simulator)}
    whole = bool(bare) and not any("cannot go on" in line for line in bare)
    return {"ok": whole and not any(against.values()), "differences": against, "lines": bare}


def _lines(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    full = {**os.environ, **environment}
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    ended = [] if done.returncode == 0 else [f"exit: {done.returncode} {done.stderr[-300:]}"]
    return [*done.stdout.splitlines(), *ended]


def _differences(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return [line for line in difflib.unified_diff(one, other, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")]


def _pytest(paths: Sequence[str], *flags: str) -> Result:
    found = Path(os.environ["XDG_RUNTIME_DIR"]) / "junit.xml"
    words = [sys.executable, "-m", "pytest", "-q", f"--junitxml={found}", "-p", "no:cacheprovider", *flags, *paths]
    done = subprocess.run(words, cwd=ROOT, timeout=BUDGET_SECONDS, check=False, capture_output=True, text=True)
    print(done.stdout[-6000:])
    cases = list(ElementTree.parse(found).getroot().iter("testcase")) if found.exists() else []
    broken = [
        {"test": f"{case.get('classname')}.{case.get('name')}", "why": (problem.get("message") or "")[:500]}
        for case in cases
        for problem in [*case.iter("failure"), *case.iter("error")]
    ]
    skipped = sum(1 for case in cases for _ in case.iter("skipped"))
    ok = done.returncode == 0 and len(cases) > skipped
    return {"ok": ok, "exit": done.returncode, "tests": len(cases), "skipped": skipped, "broken": broken}


def lending() -> Result:
    """Memory lent between processes by the driver's calls; by torch.multiprocessing: the victim `queue`."""
    return _e2e(["tests/e2e/test_lending.py"])


def examples() -> Result:
    """The programs of the first page, on the device."""
    return _e2e(["tests/e2e/test_examples.py"])


def chunk_hash() -> Result:
    """Rates of the chunk hash and of a copy on the device, and whether the host agrees."""
    made = Path(os.environ["XDG_RUNTIME_DIR"]) / "hash.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "hash.py"), "--gib", "64", "--out", str(made)]
    done = subprocess.run(words, timeout=BUDGET_SECONDS, check=False)
    return {"ok": done.returncode == 0, **json.loads(made.read_text())}


def image_ways() -> Result:
    """Ways to the disk of GCR_BENCHMARK_STORE, and sizes of chunks; needs no device."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("GCR_BENCHMARK_STORE"), prefix="gcr-ways-") as folder:
        return {"ok": True, **ways.measure(Path(folder), 4 << 30, 3)}


def image_bursts() -> Result:
    """Measures how many requests a disk serves best at once, and of which size; needs no device."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("GCR_BENCHMARK_STORE"), prefix="gcr-bursts-") as folder:
        return {"ok": True, **bursts.measure(Path(folder), 3 << 29, 200)}


def count() -> int:
    return len(devices.handles())


def gib_of_each(usual: float) -> float:
    """Returns how much is swapped on each device."""
    return float(os.environ.get("GCR_DEVICE_GIB", usual))


def sharing_swap() -> Result:
    """Swaps a rank on each device."""
    bound = all_devices.links_at_once() if count() > 2 else None
    return sharing_jobs.filled(gib=gib_of_each(sharing_jobs.SWAP_GIB), ranks=count(), bound=bound)


def under_load() -> Result:
    """Goes on where an earlier call stopped: so many swaps take longer than one call may."""
    path = Path(sys.argv[1]) / "serve-load.json"
    earlier = json.loads(path.read_text())["result"]["runs"] if path.exists() else []
    run = serve_load.load(serve_swaps.Server(serve_load.LOAD_GIB))
    return serve_load.judged_load([*earlier, run], SERVE_SWAPS)


def migrate(*words: str) -> Result:
    """Moves a job of GCR_MIGRATE_GIB from one daemon of this machine to another through TCP and TLS, GCR_MIGRATE_TIMES.

    Where there are several GPUs it comes to another one. `words`: options of benchmarks/migrate.py
    """
    gib = float(os.environ.get("GCR_MIGRATE_GIB", str(MIGRATE_GIB)))
    words += ("--gib", f"{gib:g}", "--mib-per-s", f"{gib * 1024 / 100:g}", "--device")  # 1 % a second
    words += ("--repeat", os.environ.get("GCR_MIGRATE_TIMES", "1"))
    words += ("--move", "0=1") if count() > 1 else ()
    script = str(ROOT / "benchmarks" / "migrate.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=BUDGET_SECONDS)
    if done.returncode:
        return {"ok": False, "stderr": done.stderr[-4000:]}
    return {"ok": True, **json.loads(done.stdout)}


def warmed(measure: Callable[[], Result]) -> Result:
    _warm_host_memory()
    return measure()


CHECKS: dict[str, Callable[[], Result]] = {
    "facts": device_facts.collect,
    "restored-beside": device_beside.collect,
    "smoke": smoke,
    "namespace": namespace,
    "contract": contract,
    "conformance": conformance,
    "faults": faults,
    "deaths-out": lambda: deaths("checkpoint or target or caller or daemons"),
    "deaths-in": lambda: deaths("restore"),
    "hash": chunk_hash,
    "image-ways": image_ways,
    "image-bursts": image_bursts,
    "image-tests": image_tests,
    "live": lambda: live("very_many"),
    "live-deaths": lambda: live("not very_many"),
    "lending": lending,
    "examples": examples,
    "two-devices": device_pair.check,
    "two-driver": device_pair.ask_driver,
    "whole-two": device_pair.stopped,
    "migrate": lambda: warmed(migrate),
    "migrate-busy": lambda: warmed(lambda: migrate(*BUSY)),
    "migrate-host": lambda: warmed(lambda: migrate("--host-mib", "2048")),
    "nodes-ddp": lambda: device_nodes.of_torch("ddp"),
    "nodes-tensor": lambda: device_nodes.of_torch("tensor"),
    "sharing-rates": lambda: sharing_jobs.rates(ranks=count()),
    "sharing-alone": lambda: sharing_jobs.alone(ranks=count()),
    "sharing-swap": lambda: warmed(sharing_swap),
    "sharing-handles": lambda: warmed(sharing_jobs.handles),
    "sharing-standstill": lambda: device_ranks.standstills_of_all(count()),
    "sharing-heartbeat": lambda: device_ranks.heartbeat(device_ranks.ddp(count())),
    "sharing-devices": lambda: device_ranks.moves(device_ranks.ddp(count())),
    "all-jobs": lambda: warmed(lambda: all_devices.jobs(gib_of_each(all_devices.GIB))),
    "serve-load": lambda: warmed(under_load),
    "all-process": lambda: warmed(lambda: all_devices.process(gib_of_each(all_devices.GIB))),
    "soak": soak.piece,
    "endings": endings.piece,
}
GROUPS = {
    "swap": ["link", "gcr-1", "gcr-8", "gcr-32"],
    "driver": ["driver-1", "driver-8", "driver-32"],
    "saver": ["saver-1", "saver-8", "saver-32"],
    "overhead-programs": [f"overhead-{kind}" for kind in overhead.PROGRAMS],
    "overhead-controls": ["overhead-launch-null", "overhead-launch-inert", "overhead-launch-beside"],
}


def main() -> int:
    out, piece = Path(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut short"))  # what it left on disks and devices is cleaned up
    benchmarks = swap.names()
    if piece == "list":
        print(" ".join([*CHECKS, *PIECES, *GROUPS, *benchmarks, "report"]))
        return 0
    if piece == "report":
        (out / "report.md").write_text(report.render(out) + "\n")
        print((out / "report.md").read_text())
        return 0
    if piece in GROUPS or piece in benchmarks:
        return _benchmark(out, GROUPS.get(piece, [piece]))
    return (_victims if piece in PIECES else _check)(out / f"{piece}.json", piece)


def _benchmark(out: Path, pieces: Sequence[str]) -> int:
    _warm_host_memory()
    gib = float(os.environ.get("GCR_IMAGES_GIB", images.STATE_GIB))
    for piece in pieces:
        swap.run(piece, out, gib=gib)
    return 0


def _warm_host_memory() -> None:
    testbed.warm_host_memory(int(os.environ.get("GCR_WARM_GIB", "48")))


def _check(path: Path, piece: str) -> int:
    started, facts = time.monotonic(), testbed.facts()
    result = CHECKS[piece]()
    _keep(path, piece, facts, started, result)
    print(json.dumps(result, indent=1)[-4000:])
    return 0 if result["ok"] else 1


def _victims(path: Path, piece: str) -> int:
    """Goes on where it stopped, and keeps what was found of each at once."""
    started, facts = time.monotonic(), testbed.facts()
    _warm_host_memory()
    earlier = json.loads(path.read_text())["result"]["runs"] if path.exists() else {}
    runs = {name: run for name, run in earlier.items() if run["ok"]}
    there = len(devices.handles())
    wanted = [victim for victim in PIECES[piece] if victim.name not in runs and victim.devices <= there]
    with tempfile.TemporaryDirectory() as folder:
        for name, run in swapping.run_all(wanted, World(), Path(folder), BUDGET_SECONDS):
            runs[name] = run
            ok = _all_ok(piece, runs)
            _keep(path, piece, facts, started, {"ok": ok, "devices": there, "runs": runs})
            print(f"{name}: {judging.verdict(EVERY[name], run)}", flush=True)
    return 0 if _all_ok(piece, runs) else 1


def _all_ok(piece: str, runs: Result) -> bool:
    return all(victim.name in runs and runs[victim.name]["ok"] for victim in PIECES[piece])


def _keep(path: Path, piece: str, facts: Result, started: float, result: Result) -> None:
    body = {"piece": piece, "machine": facts, "seconds": time.monotonic() - started, "result": result}
    path.write_text(json.dumps(body, indent=1))


if __name__ == "__main__":
    sys.exit(main())
