"""Faults on purpose: each action, each way to name its time and place."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


ALLOCATE = "use(); say(*[code(cu.cuMemAlloc(4096)) for _ in range(4)])"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("cuMemAlloc:2:fail=2", "0 2 0 0"),
        ("cuMemAlloc_v2:3+:fail=999", "0 0 999 999"),
        ("cuMemAlloc:*:fail=46", "46 46 46 46"),
        ("cuMemFree:1:fail=2,cuMemAlloc:1:fail=3;cuMemAlloc:4:fail=4", "3 0 0 4"),
        ("cuMemAllocHost:1:fail=2", "0 0 0 0"),
        ("cuMemAlloc@1:*:fail=2", "0 0 0 0"),
        ("nonsense cuMemAlloc cuMemAlloc:x:fail=2 cuMemAlloc:1:explode", "0 0 0 0"),
    ],
)
def test_the_nth_call_fails(machine: Machine, rule: str, expected: str) -> None:
    assert machine.run(ALLOCATE, GCR_SIM_FAULTS=rule) == [expected]
    machine.faults(f"# as a file\n{rule}\n")
    assert machine.run(ALLOCATE) == [expected]


def test_a_process_dies_at_a_call(machine: Machine) -> None:
    done = machine.attempt(
        "use(); say('up'); ck(cu.cuMemAlloc(1)); say('on'); cu.cuMemAlloc(1); say('never')",
        GCR_SIM_FAULTS="cuMemAlloc:2:die",
    )
    assert (done.stdout, done.returncode) == ("up\non\n", -signal.SIGKILL)


def test_a_call_is_late(machine: Machine) -> None:
    program = "use(); t = time.monotonic(); ck(cu.cuMemAlloc(1)); say(0.2 < time.monotonic() - t < 10)"
    assert machine.run(program, GCR_SIM_FAULTS="cuMemAlloc:1:delay=200") == ["True"]


def test_the_file_is_read_again_and_names_one_process(machine: Machine) -> None:
    loop = "use(); say('up')\nwhile wait_for_line(): say(code(cu.cuMemAlloc(1)))"
    with machine.start(loop) as one, machine.start(loop) as two:
        assert (one.hear(), two.hear()) == ("up", "up")
        assert (one.ask(), two.ask()) == ("0", "0")
        machine.faults(f"cuMemAlloc@{one.pid}:2:fail=2")
        assert (one.ask(), two.ask(), one.ask(), two.ask()) == ("0", "0", "2", "0")
        # A line that stays keeps its count, a new one starts at zero.
        machine.faults(f"cuMemAlloc@{one.pid}:2:fail=2\ncuMemAlloc:1:fail=3")
        assert (one.ask(), one.ask(), two.ask()) == ("3", "0", "3")
        machine.faults("cuMemAlloc:1:hang")
        one.tell()
        assert one.quiet(0.3)


@pytest.mark.parametrize(
    ("rule", "codes", "state"),
    [
        ("checkpoint.lock:1:fail=600", "600 401 401 401", "0"),
        ("checkpoint.checkpoint:1:fail=304", "0 304 401 0", "0"),
        ("checkpoint.copied:1:fail=2", "0 2 304 401", "3"),
        ("checkpoint.restore:1:fail=2", "0 0 2 401", "2"),
        ("cuCheckpointProcessRestore:1:fail=2", "0 0 0 0", "0"),
    ],
)
def test_a_step_of_the_checkpoint_fails_in_the_target(machine: Machine, rule: str, codes: str, state: str) -> None:
    with machine.start("use(); say('up'); wait_for_line()", GCR_SIM_FAULTS=rule) as target:
        assert target.hear() == "up"
        steps = ("Lock", "Checkpoint", "Restore", "Unlock")
        calls = ", ".join(f"code(cu.cuCheckpointProcess{step}({target.pid}, None))" for step in steps)
        lines = machine.run(
            f"ck(cu.cuInit(0)); say({calls}); say(int(cu.cuCheckpointProcessGetState({target.pid})[1]))"
        )
        assert lines == [codes, state]


def test_nvml_fails_on_purpose_too(machine: Machine) -> None:
    program = """
        import pynvml as n
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        try: n.nvmlDeviceGetMemoryInfo(h)
        except n.NVMLError as error: say(error.value)
        say(n.nvmlDeviceGetMemoryInfo(h).total > 0)
    """
    assert machine.run(program, GCR_SIM_FAULTS="nvmlDeviceGetMemoryInfo:1:fail=15") == ["15", "True"]


def test_a_target_dies_inside_a_control_call(machine: Machine) -> None:
    with machine.start(
        "use(); x = create(4 << 20); say('up'); wait_for_line()", GCR_SIM_FAULTS="checkpoint.copied:1:die"
    ) as target:
        assert target.hear() == "up"
        steps = ("Lock", "Checkpoint")
        calls = ", ".join(f"code(cu.cuCheckpointProcess{step}({target.pid}, None))" for step in steps)
        assert machine.run(f"ck(cu.cuInit(0)); say({calls})") == ["0 304"]
        assert target.process.wait(timeout=10) == -signal.SIGKILL
    assert machine.used() == 0
