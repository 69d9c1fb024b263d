"""The overhead benchmark and the late restore from end to end on the simulated device: that they run, not how fast."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import control  # noqa: E402
import later  # noqa: E402
import outlive  # noqa: E402
import overhead  # noqa: E402
import swap  # noqa: E402
import swaps  # noqa: E402
from overhead import Arm, Workload  # noqa: E402
from program import VICTIMS, gcr, stop_daemon  # noqa: E402
from slices import BARE, OTHER, parse, turns  # noqa: E402

from gcr.native import sim_dir  # noqa: E402
from gcr.supervisor.process import simulated_environment  # noqa: E402

MIB = 1 << 20
EMPTY_KERNEL = """
#include <gcr_sim_kernel.h>
GCR_SIM_KERNEL const uint32_t empty__params[] = {0};
GCR_SIM_KERNEL void empty(struct gcr_sim_launch* launch, void** params) { (void)launch, (void)params; }
"""
HOLDER = f"""
import hashlib, sys
sys.path.insert(0, {str(ROOT / "tests" / "victims")!r})
from cuda.bindings import driver
from cuda_calls import check, download, primary_context
from dialogue import serve
context = primary_context()
address = int(check(driver.cuMemAlloc(4 << 20)))
check(driver.cuMemsetD32(address, 0x5EED, 1 << 20))
serve(lambda: hashlib.sha256(download(address, 4 << 20)).hexdigest())
"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Puts a private simulated machine into the environment of programs that the test starts."""
    state = Path("/dev/shm") / f"gcr-test-{tmp_path.name}-{os.getpid()}"
    (tmp_path / "run").mkdir(mode=0o700)
    for name, value in {
        "XDG_RUNTIME_DIR": tmp_path / "run",
        "XDG_STATE_HOME": tmp_path / "state",
        "GCR_SIM_STATE": state,
        "GCR_SIM_DEVICES": 1,
        "GCR_SIM_MEMORY": 768 * MIB,
        "GCR_SEGMENT_BYTES": 16 * MIB,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(overhead, "QUIET_SECONDS", 0.2)
    yield tmp_path
    stop_daemon()
    shutil.rmtree(state, ignore_errors=True)


def compiled(folder: Path, name: str, text: str, *flags: str) -> str:
    (folder / f"{name}.c").write_text(text)
    subprocess.run(["cc", "-O1", *flags, "-o", folder / name, folder / f"{name}.c"], check=True, timeout=60)
    return str(folder / name)


def launches(folder: Path) -> Workload:
    kernel = compiled(folder, "empty.so", EMPTY_KERNEL, "-shared", "-fPIC", f"-I{ROOT / 'shim' / 'sim' / 'include'}")
    real = overhead.workload("launch", folder)
    return on_simulator(replace(real, command=(*real.command, kernel), slices=4, seconds=0.02))


def on_simulator(work: Workload) -> Workload:
    return replace(work, environment=simulated_environment("nvidia"), flags=("--simulate", "nvidia"))


def measured(arm: Arm, work: Workload, count: int = 1) -> list[overhead.Pair]:
    *_, pairs = overhead.more_pairs(arm, work, [], time.monotonic() + 100, count)
    return pairs


@pytest.mark.parametrize(
    "arm", [Arm.SHIMMED, *(pytest.param(arm, marks=pytest.mark.slow) for arm in (Arm.INERT, Arm.NULL))]
)
def test_two_programs_take_turns_and_both_work(simulated: Path, arm: Arm) -> None:
    (pair,) = measured(arm, launches(simulated))
    taken = parse(pair)["launch"]
    assert [each.which for each in taken] == list(turns(4))
    assert all(each.operations >= 512 and each.seconds >= 0.02 for each in taken)
    assert all(0 < each.median_s < each.seconds for each in taken)
    assert ("gcr_cpu_s" in pair) == (arm is Arm.SHIMMED)


@pytest.mark.slow
def test_a_victim_takes_its_steps_in_slices(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(overhead.PROGRAMS, "vmm", "vmm_victim.py --mib 2")
    work = replace(overhead.workload("vmm", simulated), slices=2, seconds=0.02)
    (pair,) = measured(Arm.SHIMMED, on_simulator(work))
    taken = parse(pair)["vmm"]
    assert [each.which for each in taken] == list(turns(2))
    assert all(each.operations >= 1 and each.seconds >= 0.02 for each in taken)


def test_every_program_is_there_and_takes_slices() -> None:
    for kind, command in overhead.PROGRAMS.items():
        assert overhead.pieces()[f"overhead-{kind}"] == (kind, Arm.SHIMMED)
        name, *more = command.split()
        text = (VICTIMS / name).read_text()
        assert "perform(options" in text and all(word in text for word in more if word.startswith("--"))


def test_pairs_are_started_a_few_at_once(simulated: Path) -> None:
    work = replace(launches(simulated), together=2)
    known = list(overhead.more_pairs(Arm.SHIMMED, work, [], time.monotonic() + 100, 3))
    assert [len(each) for each in known] == [2, 3]
    assert all("gcr_cpu_s" in pair and len(parse(pair)["launch"]) == 8 for pair in known[-1])


def test_a_program_is_pinned_with_all_its_threads() -> None:
    program = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print('up', flush=True)"
    running = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with running:
        assert running.stdout is not None and running.stdout.readline()
        overhead.pin(running.pid, 1)
        tasks = [int(task.name) for task in Path(f"/proc/{running.pid}/task").iterdir()]
        assert len(tasks) == 2
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({max(os.sched_getaffinity(0))})}


def test_one_program_works_with_and_without_gcr_beside(simulated: Path) -> None:
    (pair,) = measured(Arm.BESIDE, launches(simulated))
    taken = parse(pair)["launch"]
    assert [each.which for each in taken] == [BARE] * 4 + [OTHER] * 4
    assert gcr("daemon", "status")["running"]


@pytest.mark.slow
def test_allocations_are_prepared_for_before_the_first_slice(simulated: Path) -> None:
    real = overhead.workload("alloc", simulated)
    sizes = ("1024", str(2 * MIB))
    command = (*real.command[:-1], sizes[-1])
    work = on_simulator(replace(real, command=command, names=sizes, slices=2, seconds=0.02))
    (pair,) = measured(Arm.SHIMMED, work)
    assert set(parse(pair)) == set(sizes)
    assert gcr("daemon", "status")["arena_pinned_bytes"] >= 8 * 2 * MIB  # a whole batch of the largest


def test_a_piece_goes_on_where_it_stopped(simulated: Path) -> None:
    work = launches(simulated)
    first = measured(Arm.NULL, work)
    *_, both = overhead.more_pairs(Arm.NULL, work, first, time.monotonic() + 100, 2)
    assert both[0] is first[0] and len(both) == 2
    assert list(overhead.more_pairs(Arm.NULL, work, both, time.monotonic() + 100, 2)) == []
    assert list(overhead.more_pairs(Arm.NULL, work, first, time.monotonic(), 2)) == []
    assert "launch: loss" in overhead.describe(both)


@pytest.mark.slow
def test_what_is_never_prepared_is_an_error(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCR_PREPARE_ARENA", "0")
    monkeypatch.setattr(overhead, "PREPARE_SECONDS", 3.0)
    with pytest.raises(SystemExit, match="still prepares"):
        measured(Arm.SHIMMED, launches(simulated))


def test_results_of_an_older_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "overhead-launch.json"
    path.write_text('{"result": [{"bare": {"launches_per_s": 1}, "shimmed": {"launches_per_s": 1}}]}')
    with pytest.raises(SystemExit, match="older version"):
        swap._earlier(path)


@pytest.mark.slow
def test_a_restore_comes_later_from_a_process_that_stays(simulated: Path) -> None:
    process, world = (
        outlive.Outliving(simulated / "later"),
        {**simulated_environment("nvidia"), "GCR_WORKER_IDLE_S": "0.1"},
    )
    arguments = (4.0, [sys.executable, "-c", HOLDER], ("--simulate", "nvidia"), world)
    with pytest.raises(outlive.NotYet) as not_yet:
        later.begin_or_end(process, *arguments)
    assert not_yet.value.code == outlive.NOT_YET
    with pytest.raises(outlive.NotYet):
        later.begin_or_end(process, *arguments)  # asks, and begins nothing
    time.sleep(4.5)
    result = later.begin_or_end(process, *arguments)
    assert result["bytes_right"] and result["seconds_suspended"] >= 4.0
    assert len(result["warm"]) == later.WARM_CYCLES and not process.folder.exists()


def test_a_process_that_stays_and_fails_says_why(simulated: Path) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no device for me')"]
    process = outlive.Outliving(simulated / "later")
    with pytest.raises(SystemExit, match="no device for me"):
        later.begin_or_end(process, 1.0, broken, ("--simulate", "nvidia"), {})
    assert not process.folder.exists()
    (left,) = simulated.glob("later-*")
    assert not (left / "run" / "gcr" / "gcrd.sock").exists()  # its daemon ended, too


def test_the_simulated_device_gives_no_figures(simulated: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "swap.py"), "--piece", "overhead-launch", "--out", str(tmp_path)]
    world = {**os.environ, "LD_LIBRARY_PATH": str(sim_dir("nvidia"))}
    done = subprocess.run(words, env=world, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "simulated" in done.stderr
    assert not (tmp_path / "overhead-launch.json").exists()


@pytest.mark.slow
def test_what_makes_control_state_slow_is_held_and_comes_back(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        control,
        "HOLDS",
        {
            "all": ("--allocated-mib", "8", "--registered-mib", "4", "--contexts", "1", "--pool-mib", "2"),
        },
    )
    monkeypatch.setattr(swaps, "driver_cycles", lambda _command, cycles: [{"cycle": each} for each in range(cycles)])
    monkeypatch.setattr(swaps.testbed, "used_bytes", lambda: 0)  # of a device, which is not here
    monkeypatch.setattr(swaps.testbed, "bytes_of", lambda _pid: 0)
    monkeypatch.setattr(control, "SETTLE_SECONDS", 0.0)
    (known,) = control.measure(("--simulate", "nvidia"))
    rows = known["all"]["gcr"]
    assert [row["bytes_right"] for row in rows] == [True] * control.CYCLES
    assert [(row["pinned_host_bytes"], row["contexts"]) for row in rows] == [(12 * MIB, 2)] * control.CYCLES
    assert all(row["uncovered"] == [{"pool": 2 * MIB}] and row["out_control_s"] > 0 for row in rows)
    assert len(known["all"]["driver"]) == control.CYCLES
