"""The driver of tests/gpu/victims.py from end to end on the SIMULATED device, and what it says of what is wrong."""

import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
VICTIMS = ROOT / "tests" / "victims"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "gpu")]

import compatibility  # noqa: E402
import judging  # noqa: E402
import outlive  # noqa: E402
import soak  # noqa: E402
import swapping  # noqa: E402
from held import Held, Silent, World  # noqa: E402
from program import gcr, stop_daemon  # noqa: E402
from victims import Victim, Wanted, program  # noqa: E402

from gcr.native import sim_dir  # noqa: E402
from gcr.supervisor.process import simulated_environment  # noqa: E402

GAP = 0.02
SECONDS = 300.0  # more than any can take, by what swapping.run_all reckons
NOWHERE = dict.fromkeys(("device", "driver", "link", "kernel", "cores", "python", "date"), "simulated")
COUNT = "import sys; from gcr_nvidia import devices; print(sum(devices.bytes_of(int(sys.argv[1])).values()))"
BEGIN = f"""
import os, sys, time
sys.path.insert(0, {str(VICTIMS)!r})
from cuda.bindings import driver
from cuda_calls import check, primary_context
from dialogue import parser, perform
context = primary_context()
address = int(check(driver.cuMemAlloc(4 << 20)))
class Program:
    steps = 0
    def step(self):
        check(driver.cuMemsetD32(address, self.steps, 1 << 20))
        self.steps += 1
        time.sleep(0.002)
        return str(self.steps)
    def digest(self):
        return str(self.steps)
program, options = Program(), parser(None).parse_args()
"""
END = "\nperform(options, program)\n"


def simulated_bytes(pid: int) -> int:
    words = [sys.executable, "-c", COUNT, str(pid)]
    world = {**os.environ, **simulated_environment("nvidia")}
    return int(subprocess.run(words, env=world, capture_output=True, text=True, check=True, timeout=30).stdout)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A private simulated machine."""
    state = Path("/dev/shm") / f"gcr-test-{tmp_path.name}-{os.getpid()}"
    (tmp_path / "run").mkdir(mode=0o700)
    for name, value in {
        "XDG_RUNTIME_DIR": tmp_path / "run",
        "XDG_STATE_HOME": tmp_path / "state",
        "GCR_SIM_STATE": state,
        "GCR_SIM_DEVICES": 1,
        "GCR_SIM_MEMORY": 2 << 30,  # bare, the simulated pools keep what was freed until its stream got there
        "GCR_SEGMENT_BYTES": 16 << 20,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(swapping, "ALONE_SECONDS", 0.2)
    yield World(("--simulate", "nvidia"), simulated_environment("nvidia"), simulated_bytes)
    stop_daemon()
    shutil.rmtree(state, ignore_errors=True)


def victim(name: str, command: str, **more: object) -> Victim:
    return Victim(name, name, command, gap=GAP, **{"swaps": 3, **more})  # type: ignore[arg-type]


def written(folder: Path, name: str, text: str) -> str:
    """A program of the test's own, as a command."""
    path = folder / f"{name}.py"
    path.write_text(BEGIN + text + END)
    return str(path)


def found(one: Victim, world: World, folder: Path) -> dict[str, swapping.Result]:
    return dict(swapping.run_all([one], world, folder, SECONDS))


@pytest.mark.slow
def test_programs_are_swapped_at_work_and_print_as_bare_ones(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swaps = 8  # twenty on a device
    kernels = sim_dir("nvidia") / "kernels.so"
    wanted = [
        victim("vmm", "vmm_victim.py --pause 0.002", package="cuda", swaps=swaps),
        victim("alloc", f"alloc_victim.py --ordered --kernels {kernels}", swaps=swaps),
        victim("c", "c_victim.c 2 2 hold 500", swaps=swaps),
    ]
    runs = dict(swapping.run_all(wanted, world, tmp_path, SECONDS))
    assert set(runs) == {"vmm", "alloc", "c"}
    for one in wanted:
        run = runs[one.name]
        assert run["ok"], run
        assert judging.verdict(one, run) == "swapped, same output"
        assert len(run["gcr"]["swaps"]) == swaps and not run["gcr"]["errors"]
        steps = [swap["step"] for swap in run["gcr"]["swaps"]]
        assert all(earlier < later for earlier, later in itertools.pairwise(steps)), steps
        assert run["bare"]["done"] == run["gcr"]["done"]
        assert run["bare"]["output_sha256"] == run["gcr"]["output_sha256"]
        assert judging.covered_share(run) == 1.0
        assert judging.inflation(run) is not None
    assert runs["vmm"]["gcr"]["held_bytes"] >= 12 << 20
    assert runs["vmm"]["gcr"]["steps_per_s"] > 0 < runs["vmm"]["bare"]["steps_per_s"]
    assert "cuda-bindings" in runs["vmm"]["version"] and runs["c"]["version"].startswith("cc ")
    monkeypatch.setattr(compatibility, "PIECES", {"victims-others": wanted})
    (tmp_path / "victims-others.json").write_text(
        json.dumps({"machine": NOWHERE, "result": {"devices": 1, "runs": runs}})
    )
    page = compatibility.render([(tmp_path, "no commit")])
    assert page.count("| 8 | yes | 1.0000 |") == page.count("| swapped, same output |") == 3


def test_ranks_that_wait_for_each_other_are_swapped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the piece `nccl` does on two GPUs. gcr knows the collective by its name."""
    monkeypatch.setenv("GCR_SIM_DEVICES", "2")
    kernels = sim_dir("nvidia") / "kernels.so"
    one = victim("ranks", f"ranks_victim.py --kernels {kernels} --collective cross_device_reduce", devices=2)
    run = found(one, world, tmp_path)["ranks"]
    assert judging.verdict(one, run) == "swapped, same output"
    assert (len(run["gcr"]["swaps"]), run["gcr"]["errors"]) == (3, [])
    assert run["bare"]["output_sha256"] == run["gcr"]["output_sha256"]


def test_what_is_to_be_refused_is_refused_and_runs_on(world: World, tmp_path: Path) -> None:
    managed = "check(driver.cuMemAllocManaged(1 << 20, 1))"
    one = victim("managed", written(tmp_path, "managed", managed), wanted=Wanted.REFUSED)
    run = found(one, world, tmp_path)["managed"]
    assert run["ok"], run
    assert [error["code"] for error in run["gcr"]["errors"]] == ["unsupported_state"] * 3
    assert judging.verdict(one, run) == "refused, runs as bare"
    (fault,) = judging.faults(victim("managed", one.command), run)  # and where it should have been swapped
    assert fault.startswith("0 of 3 swaps, checkpoint: unsupported_state")


@pytest.mark.slow
def test_what_is_to_be_refused_and_is_swapped_is_at_fault(world: World, tmp_path: Path) -> None:
    one = victim("plain", written(tmp_path, "plain", ""), wanted=Wanted.REFUSED)
    run = found(one, world, tmp_path)["plain"]
    assert not run["ok"] and judging.verdict(one, run) == "NO: not refused: 3 swaps"


def test_another_output_and_another_exit_code_than_bare_are_seen(world: World, tmp_path: Path) -> None:
    text = """
import atexit
program.digest = lambda: str("LD_PRELOAD" in os.environ)
atexit.register(lambda: "LD_PRELOAD" in os.environ and os._exit(7))
"""
    one = victim("tells", written(tmp_path, "tells", text))
    run = found(one, world, tmp_path)["tells"]
    assert not run["ok"]
    code, output = judging.faults(one, run)
    assert code == "gcr: exit code 7"
    assert output.endswith("bare 'digest False', under gcr 'digest True'")


@pytest.mark.slow
def test_a_program_that_stands_still_after_a_swap_is_a_failure_and_is_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "STEP_SECONDS", 10.0)
    text = "step = program.step\nprogram.step = lambda: time.sleep(600) if program.steps == 1500 else step()"
    run = found(victim("stands", written(tmp_path, "stands", text), swaps=1000), world, tmp_path)["stands"]
    assert not run["ok"]
    assert "under gcr: not another step within 10 s" in run["failed"] and "step 149" in run["failed"]
    assert run["gcr"]["swaps"]  # those before it are known
    end = time.monotonic() + 30
    while gcr("ps")["jobs"]:
        assert time.monotonic() < end


@pytest.mark.slow
def test_a_program_that_cannot_begin_says_why(world: World, tmp_path: Path) -> None:
    one = victim("absent", written(tmp_path, "absent", "raise SystemExit('no such library')"))
    run = found(one, world, tmp_path)["absent"]
    assert not run["ok"] and "no such library" in run["failed"]
    assert judging.verdict(one, run).startswith("NO: Silent: under gcr: not ready")
    broken = victim("broken", str(tmp_path / "absent.c"))
    assert "CalledProcessError" in found(broken, world, tmp_path)["broken"]["failed"]


def test_a_swap_that_fails_is_told_from_one_that_did_not(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of gcr's own in the first checkpoint: rolled back, counted, and the others go on."""
    one = victim("plain", written(tmp_path, "plain", ""))
    monkeypatch.setenv("GCR_FAULTS", str(tmp_path / "faults"))
    (tmp_path / "faults").write_text("checkpoint.staged fail\n")
    run = found(one, world, tmp_path)["plain"]
    assert not run["ok"]
    assert len(run["gcr"]["swaps"]) == 3 and len(run["gcr"]["errors"]) == 1
    assert judging.verdict(one, run).startswith("NO: 3 of 3 swaps, checkpoint: ")


@pytest.mark.slow
def test_a_program_that_breaks_off_is_not_blamed_on_the_bare_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
from dialogue import WARM, over
step = program.step
def last():
    while not over():
        time.sleep(0.01)
    os._exit(9)
program.step = lambda: step() if program.steps < WARM else last()
"""
    run = found(victim("breaks", written(tmp_path, "breaks", text), swaps=0), world, tmp_path)["breaks"]
    assert run["failed"].startswith("Silent: under gcr: ended with 9 and did not say how much it did")


def test_none_is_begun_that_could_not_end_in_time(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each victim at work may need as long as the first."""
    monkeypatch.setattr(swapping, "AT_ONCE", 1)
    monkeypatch.setattr(swapping, "run", lambda *_: {"gcr": {"lane_s": 50.0}})
    wanted = [victim(name, "vmm_victim.py") for name in ("one", "two")]
    assert set(dict(swapping.run_all(wanted, world, tmp_path, 70.0))) == {"one"}
    assert dict(swapping.run_all(wanted, world, tmp_path, 50.0)) == {}


def test_a_bare_run_that_goes_on_is_ended(world: World, tmp_path: Path) -> None:
    command = program(victim("vmm", "vmm_victim.py --pause 0.01"), tmp_path)
    with Held(command, world, None) as running:
        running.await_ready(30)
        running.tell("1000000")
        running.await_step(10)
        with pytest.raises(Silent, match="still running"):
            running.finish(0.5)
    assert running.process.returncode == -9


def test_files_that_a_program_left_behind_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("held.LAST_WORDS_SECONDS", 2.0)
    script = "sleep 60 & echo child $!; echo ready; read steps; echo steps $steps"
    began = time.monotonic()
    with Held(["sh", "-c", script], World(), None) as running:
        running.await_ready(30)
        running.tell("7")
        running.finish(30)
    took = time.monotonic() - began
    os.kill(int(running.stdout[0].split()[1]), signal.SIGKILL)
    assert (running.done(), running.process.returncode) == ("7", 0)
    assert took < 40
    for reader, pipe in zip(running._readers, (running.process.stdout, running.process.stderr), strict=True):
        reader.join(10)
        pipe.close()


def device_script() -> ModuleType:
    """tests/gpu/device.py; there is a victim's module of that name, too."""
    spec = importlib.util.spec_from_file_location("gpu_device", ROOT / "tests" / "gpu" / "device.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_piece_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, begun = device_script(), []

    def run_all(victims, *_more):
        for each in victims:
            begun.append(each.name)
            yield each.name, {"ok": each.name != "bad", "failed": "so it is", "gcr": {"swaps": [], "errors": []}}

    pieces = {"some": [victim(name, "x.py") for name in ("good", "bad")] + [victim("two", "x.py", devices=2)]}
    monkeypatch.setattr(script.swapping, "run_all", run_all)
    monkeypatch.setattr(script, "PIECES", pieces)
    monkeypatch.setattr(script, "EVERY", {each.name: each for each in pieces["some"]})
    monkeypatch.setattr(script.devices, "handles", lambda: ["one"])
    monkeypatch.setattr(script.testbed, "facts", lambda: {"device": "none"}, raising=False)
    monkeypatch.setattr(script, "_warm_host_memory", lambda: None)
    path = tmp_path / "some.json"
    assert script._victims(path, "some") == 1
    assert script._victims(path, "some") == 1
    assert begun == ["good", "bad", "bad"]  # and none for two devices on a machine with one
    body = json.loads(path.read_text())
    assert set(body["result"]["runs"]) == {"good", "bad"} and body["result"]["devices"] == 1


def test_the_simulated_device_gives_no_figures(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "tests" / "gpu" / "device.py"), str(tmp_path), "victims-others"]
    path = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    there = {**os.environ, "LD_LIBRARY_PATH": str(sim_dir("nvidia")), "PYTHONPATH": path}
    done = subprocess.run(words, env=there, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "simulated" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_soak_looks_at_every_process_that_takes_part(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak.testbed, "used_bytes", lambda: 0)  # of a device, which is not here
    monkeypatch.setattr(soak, "MORE_TIME", 1e6)  # nor is this machine quiet
    process = outlive.Outliving(tmp_path)
    run = soak.soak(process, victim("vmm", "vmm_victim.py --pause 0.002"), 8, world)
    assert run["ok"], (run["gcr"]["errors"], run["difference"], run["drifts"])
    assert len(run["gcr"]["swaps"]) == soak.done(process.folder) == 8
    assert [sample["swap"] for sample in run["samples"]] == [*range(1, 9)]
    for sample in run["samples"]:
        assert {*sample["processes"]} == {"program", "supervisor", "daemon", "worker 0"}
        assert all(min(held.values()) > 0 for held in sample["processes"].values())
        assert sample["program_device_bytes"] > 0
    assert (
        run["samples"][0]["processes"]["program"]["threads"] > run["samples"][0]["processes"]["supervisor"]["threads"]
    )
