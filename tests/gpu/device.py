"""One piece of tests/gpu/device.sh: runs it and leaves OUT/PIECE.json. Exit 1 when what it checks is not so."""

import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import device_facts  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
import swap  # noqa: E402
from program import GCR, Program, fill, gcr  # noqa: E402

from gcr.native import sim_dir  # noqa: E402

VICTIMS = ROOT / "tests" / "victims"
BUDGET_SECONDS = 400.0
VICTIM_SECONDS = 150.0
CYCLES = 3
VICTIMS_AT_ONCE, TESTS_AT_ONCE = 4, "6"  # what is slow about them is starting
Result = dict[str, Any]

RUNS: dict[str, tuple[str, ...]] = {
    "vmm": ("vmm_victim.py", "--steps", "300", "--pause", "0.05"),
    "vmm-exportable": ("vmm_victim.py", "--steps", "300", "--pause", "0.05", "--exportable"),
    "torch": ("torch_victim.py", "--steps", "60", "--pause", "0.2"),
    "torch-expandable": ("torch_victim.py", "--steps", "60", "--pause", "0.2", "--allocator", "expandable"),
    "torch-async": ("torch_victim.py", "--steps", "60", "--pause", "0.2", "--allocator", "async"),
    "torch-uncached": ("torch_victim.py", "--steps", "60", "--pause", "0.2", "--allocator", "none"),
    "graph": ("graph_victim.py", "--steps", "60", "--pause", "0.2"),
    "triton": ("triton_victim.py", "--steps", "60", "--pause", "0.2"),
    "cupy": ("cupy_victim.py", "--steps", "60", "--pause", "0.2"),
    "jax": ("jax_victim.py", "--steps", "60", "--pause", "0.2"),
    "c": ("c_victim", "4", "3", "5000", "8000"),
    "alloc": ("alloc_victim.py", "--seconds", "15", "--kernels", str(VICTIMS / "add.ptx")),
}


def smoke() -> Result:
    """A small PyTorch program out to VRAM 0 and back, every byte right."""
    with Program(fill(0.5), job="smoke") as program:
        before, held, used = program.ask(), machine.bytes_of(program.pid), machine.used_bytes()
        out = gcr("checkpoint", "smoke")
        left, freed = machine.bytes_of(program.pid), used - machine.used_bytes()
        back = gcr("restore", "smoke")
        after = program.ask()
    ok = 0 < out["bytes"] <= freed and left == 0 and before == after
    found = {"ok": ok, "held": held, "left": left, "freed": freed, "bytes_right": before == after}
    return {**found, "checkpoint": out, "restore": back}


def namespace() -> Result:
    """The same in a pid namespace, as in a container: who counts by process may know it by another number."""
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


def _e2e(paths: Sequence[str], *flags: str) -> Result:
    os.environ["GCR_E2E_ON_DEVICE"] = "1"
    return _pytest(
        paths, "-m", "slow or not slow", "-p", "no:benchmark", "-n", TESTS_AT_ONCE, "--timeout", "120", *flags
    )


def conformance() -> Result:
    """The conformance program on the device bare, on the device under gcr, and on the simulator: line by line equal."""
    program = str(_compile("cuda_conformance", sorted((ROOT / "tests" / "contract" / "conformance").glob("*.c"))))
    simulated = {"LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIM_STATE": os.environ["XDG_RUNTIME_DIR"]}
    bare = _lines([program], {})
    shimmed = _lines([*GCR, "run", "--name", "conformance", "--", program], {})
    simulator = _lines([program], simulated)
    against = {"gcr": _differences(bare, shimmed), "simulator": _differences(bare, simulator)}
    whole = bool(bare) and not any("cannot go on" in line for line in bare)
    return {"ok": whole and not any(against.values()), "differences": against, "lines": bare}


def _lines(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    full = {**os.environ, **environment}
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=VICTIM_SECONDS, check=False)
    ended = [] if done.returncode == 0 else [f"exit: {done.returncode} {done.stderr[-300:]}"]
    return [*done.stdout.splitlines(), *ended]


def _differences(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return [line for line in difflib.unified_diff(one, other, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")]


def _compile(name: str, sources: Sequence[Path]) -> Path:
    program = Path(os.environ["XDG_RUNTIME_DIR"]) / name
    words = ["cc", "-std=gnu11", "-O1", "-o", str(program), *map(str, sources), "-ldl", "-lpthread"]
    subprocess.run(words, check=True, timeout=VICTIM_SECONDS)
    return program


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


def victims(path: Path) -> Result:
    """Each victim bare and under gcr, checkpointed on the way: the same output. Goes on where it stopped."""
    earlier = json.loads(path.read_text())["result"]["runs"] if path.exists() else {}
    runs: Result = {name: run for name, run in earlier.items() if run["ok"]}
    give_up = time.monotonic() + BUDGET_SECONDS - VICTIM_SECONDS

    def run(name: str) -> None:
        if time.monotonic() < give_up:
            runs[name] = _victim(name, RUNS[name])
            print(name, json.dumps(runs[name])[:600], flush=True)

    with ThreadPoolExecutor(VICTIMS_AT_ONCE) as several:
        list(several.map(run, [name for name in RUNS if name not in runs]))
    return {"ok": set(runs) == set(RUNS) and all(run["ok"] for run in runs.values()), "runs": runs}


def _victim(name: str, words: Sequence[str]) -> Result:
    job = f"victim-{name}"
    command = _command(words)
    bare = subprocess.run(command, capture_output=True, text=True, timeout=VICTIM_SECONDS, check=False)
    shimmed = subprocess.Popen(
        [*GCR, "run", "--name", job, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        cycles = _cycles(job, shimmed)
        stdout, stderr = shimmed.communicate(timeout=VICTIM_SECONDS)
    finally:
        shimmed.kill()
    same = (bare.returncode, bare.stdout) == (shimmed.returncode, stdout)
    whole = [cycle for cycle in cycles if "error" not in cycle]
    ok = same and bare.returncode == 0 and len(whole) == CYCLES
    words_of = {} if same else {"bare": bare.stdout[-500:] + bare.stderr[-500:], "gcr": stdout[-500:] + stderr[-500:]}
    return {"ok": ok, "same_output": same, "exit": shimmed.returncode, "cycles": cycles, **words_of}


def _command(words: Sequence[str]) -> list[str]:
    if words[0].endswith(".py"):
        return [sys.executable, str(VICTIMS / words[0]), *words[1:]]
    return [str(_compile(words[0], [VICTIMS / f"{words[0]}.c"])), *words[1:]]


def _cycles(job: str, running: "subprocess.Popen[str]") -> list[Result]:
    """Checkpoints and restores while the victim works; a refusal is recorded, and the victim runs on."""
    if not _until_on_device(job, running):
        return [{"error": f"gcr never saw the victim on the device; its exit code is {running.poll()}"}]
    cycles: list[Result] = []
    for _ in range(CYCLES):
        time.sleep(0.5)
        if running.poll() is not None:
            cycles.append({"error": "the victim ended before this cycle"})
            break
        cycles.append(_cycle(job))
    return cycles


def _cycle(job: str) -> Result:
    try:
        out = gcr("checkpoint", job)
        time.sleep(0.3)
        back = gcr("restore", job)
    except SystemExit as refused:
        return {"error": str(refused)[:700]}
    parts = [{k: each[k] for k in ("strategy", "covered_bytes", "uncovered", "handles")} for each in out["processes"]]
    return {"vram_free_s": out["vram_free_s"], "total_s": back["total_s"], "processes": parts}


def _until_on_device(name: str, running: "subprocess.Popen[str]") -> bool:
    give_up = time.monotonic() + 60.0
    while running.poll() is None and time.monotonic() < give_up:
        jobs = [job for job in gcr("ps")["jobs"] if job["job"] == name]
        if any(process["bytes"] > 0 for job in jobs for process in job["processes"]):
            return True
        time.sleep(0.2)
    return False


def lending() -> Result:
    """Memory lent between processes: by the driver's calls, and by torch.multiprocessing, which is refused."""
    by_hand = _e2e(["tests/e2e/test_lending.py"])
    command = _command(["torch_queue_victim.py", "--rounds", "60", "--pause", "0.1"])
    bare = subprocess.run(command, capture_output=True, text=True, timeout=VICTIM_SECONDS, check=False)
    words = [*GCR, "run", "--name", "queue", "--", *command]
    shimmed = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        attempts = _cycles("queue", shimmed)
        stdout, stderr = shimmed.communicate(timeout=VICTIM_SECONDS)
    finally:
        shimmed.kill()
    same = (bare.returncode, bare.stdout) == (0, stdout)
    refused = bool(attempts) and all("unsupported_state" in each.get("error", "") for each in attempts)
    said = {} if same else {"bare": bare.stdout[-500:] + bare.stderr[-500:], "gcr": stdout[-500:] + stderr[-500:]}
    return {
        "ok": by_hand["ok"] and same and refused,
        "by_hand": by_hand,
        "same_output": same,
        "attempts": attempts,
        **said,
    }


def chunk_hash() -> Result:
    """Rates of the chunk hash and of a copy on the device, and whether the host agrees."""
    made = Path(os.environ["XDG_RUNTIME_DIR"]) / "hash.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "hash.py"), "--gib", "64", "--out", str(made)]
    done = subprocess.run(words, timeout=BUDGET_SECONDS, check=False)
    return {"ok": done.returncode == 0, **json.loads(made.read_text())}


CHECKS: dict[str, Callable[[], Result]] = {
    "facts": device_facts.collect,
    "smoke": smoke,
    "namespace": namespace,
    "contract": contract,
    "conformance": conformance,
    "faults": faults,
    "deaths-out": lambda: deaths("checkpoint or target or caller or daemons"),
    "deaths-in": lambda: deaths("restore"),
    "hash": chunk_hash,
    "lending": lending,
}
GROUPS = {
    "swap": ["link", "gcr-1", "gcr-8", "gcr-32"],
    "driver": ["driver-1", "driver-8", "driver-32"],
    "saver": ["saver-1", "saver-8", "saver-32"],
    "overhead-controls": ["overhead-launch-null", "overhead-launch-inert", "overhead-launch-beside"],
}


def main() -> int:
    out, piece = Path(sys.argv[1]), sys.argv[2]
    benchmarks = [*swap.pieces(), *swap.OVERHEAD]
    if piece == "list":
        print(" ".join([*CHECKS, "victims", *GROUPS, *benchmarks, "report"]))
        return 0
    if piece == "report":
        (out / "report.md").write_text(report.render(out) + "\n")
        print((out / "report.md").read_text())
        return 0
    if piece in GROUPS or piece in benchmarks:
        return _benchmark(out, GROUPS.get(piece, [piece]))
    return _check(out / f"{piece}.json", piece)


def _benchmark(out: Path, pieces: Sequence[str]) -> int:
    machine.warm_host_memory(int(os.environ.get("GCR_WARM_GIB", "48")))
    for piece in pieces:
        swap.run(piece, out)
    return 0


def _check(path: Path, piece: str) -> int:
    started = time.monotonic()
    facts = machine.facts()
    result = victims(path) if piece == "victims" else CHECKS[piece]()
    seconds = time.monotonic() - started
    body = {"piece": piece, "machine": facts, "seconds": seconds, "result": result}
    path.write_text(json.dumps(body, indent=1))
    print(json.dumps(result, indent=1)[-4000:])
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
