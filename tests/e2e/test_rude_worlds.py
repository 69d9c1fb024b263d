"""Programs that load the driver in unusual ways, or make their world smaller: what gcr can do with each, and says."""

import os
import time
from pathlib import Path

import pytest
from machine import PATIENCE, Machine, until
from refusals import refused
from rude import SOURCES, bare, compiled, program, says, swap
from worlds import NVIDIA

from gcr.native import sim_dir

DRIVER = sim_dir("nvidia") / "libcuda.so.1"
NOBODY, CODE = 65534, 7
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can")
SCRIPT = ["?", "hold 3", "storm children", "calm children", "?"]


@pytest.fixture(scope="session")
def rude(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program(tmp_path_factory.mktemp("rude"))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    linked = ["-shared", "-fPIC", str(SOURCES / "plugin.c"), f"-L{DRIVER.parent}", f"-l:{DRIVER.name}"]
    return str(compiled(tmp_path_factory.mktemp("plugin"), "plugin.so", *linked))


# ---- how the driver is loaded ------------------------------------------------------------------------------------


def swapped_as_bare(machine: Machine, command: list[str]) -> None:
    expected = bare(machine, command, SCRIPT)
    job = machine.run("llm", *command)
    said = []
    for line in SCRIPT:
        swap(machine)
        said += says(job, [line])
    assert said == expected
    swap(machine)
    assert says(job, ["?"]) == expected[-1:]


def test_by_its_absolute_path(machine: Machine, rude: str) -> None:
    swapped_as_bare(machine, [rude, "library", str(DRIVER.resolve())])


def test_by_a_name_of_ones_own(machine: Machine, rude: str, tmp_path: Path) -> None:
    link = tmp_path / "gpu_driver.so"
    link.symlink_to(DRIVER.resolve())
    swapped_as_bare(machine, [rude, "library", str(link)])


@pytest.mark.parametrize("how", ["deep", "namespace"])
def test_past_any_preload(machine: Machine, rude: str, plugin: str, how: str) -> None:
    """No call of it is seen: it runs as bare, and gcr says that it has a driver all the same."""
    script = ["?", "hold 3", "?"]
    expected = bare(machine, [rude, how, plugin], script)
    job = machine.run("llm", rude, how, plugin)
    said = says(job, script[:1])
    assert DRIVER.name[:7] in refused(machine.gcr("checkpoint", "llm"), "not_a_gpu_process")
    assert said + says(job, script[1:]) == expected


def test_beside_calls_that_are_seen(machine: Machine, rude: str, plugin: str) -> None:
    """A plugin of the program could call the driver while calls are forbidden."""
    command = [rude, "beside", plugin]
    expected = bare(machine, command, SCRIPT)
    job = machine.run("llm", *command)
    said = []
    for line in SCRIPT:
        assert "plugin.so calls the driver past gcr" in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")
        assert machine.job("llm")["state"] == "running"
        said += says(job, [line])
    assert said == expected


# ---- smaller worlds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["limit_files 24", "limit_memory 1000", "limit_threads 1"])
def test_limits(machine: Machine, rude: str, limit: str) -> None:
    script = ["?", limit, "?", "hold 20", "?"]
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    said = []
    for line in script:
        said += says(job, [line])
        swap(machine)
    assert said == expected
    assert says(job, ["?"]) == expected[-1:]


@ROOT_ONLY
def test_other_namespaces(machine: Machine, rude: str) -> None:
    script = ["?", "unshare", "?"]
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    said = []
    for line in script:
        said += says(job, [line])
        swap(machine)
    assert said == expected


@ROOT_ONLY
@pytest.mark.parametrize("line", [f"become {NOBODY}", "chroot EMPTY"])
def test_another_user_or_root(machine: Machine, rude: str, line: str, tmp_path: Path) -> None:
    """A driver that cannot open its devices any more would never give it back."""
    line = line.replace("EMPTY", str(tmp_path))
    expected = bare(machine, [rude], ["?", line, "?"])
    job = machine.run("llm", rude)
    said = says(job, ["?"])
    swap(machine)
    said += says(job, [line])
    assert "its user or its root directory" in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")
    assert said + says(job, ["?"]) == expected


# ---- a device that is full, and descriptors that are gone --------------------------------------------------------


@pytest.mark.parametrize("worker", [False, True], ids=["at once", "with a worker there"])
def test_a_full_device(machine: Machine, rude: str, worker: bool) -> None:
    """It comes back to a device that has room for it and for nothing more."""
    script = ["fill_up", "?", "fill_up", "free_up", "?", "hold 3", "?"]
    expected = bare(machine, [rude], ["fill_up", "taken"])
    most = int(expected[1].split()[-1])
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    if worker:
        swap(machine)
    said = says(job, script[:1])
    assert worker or 0.97 * most < int(job.ask("taken")) <= most
    for line in script[1:]:
        swap(machine)
        said += says(job, [line])
    assert said == expected


def at_last(machine: Machine, command: str) -> None:
    """An agent that lost its connection may not be back yet."""
    until(lambda: machine.ask(command, "llm").code == 0 or None, PATIENCE, f"the {command} succeeds")


@pytest.mark.parametrize("command", ["checkpoint", "restore"])
def test_a_connection_that_the_program_closes(machine: Machine, command: str) -> None:
    """At every step the agent connects anew, the command is finished or taken back, and nothing is lost.

    On a busy machine the agent may be back too late for that. Then the command says that the job stands still, and the
    daemon recovers it.
    """
    steps = NVIDIA.checkpoint() if command == "checkpoint" else NVIDIA.restore()
    job = machine.told("llm", "alloc 3 100000")
    before = job.ask()
    for step in steps:
        if command == "restore":
            machine.leave()
        with machine.held_at(f"{command}.{step}"):
            running = machine.command(command)
            machine.wait_held()
            assert int(job.ask("close_all")) >= 1, step
        done = running.result(timeout=60)
        assert done.code in (0, 4) or done.body["error"]["code"] == "stands_still", (step, done.body)
        if machine.until_state("llm", "running", "suspended") == "suspended":
            at_last(machine, "restore")
        assert job.ask() == before, step
        at_last(machine, "checkpoint")
        machine.come_back()
        assert job.ask() == before, step


@pytest.mark.slow
def test_a_program_that_takes_what_it_did_not_open(machine: Machine, rude: str) -> None:
    """It closes gcr's descriptors again and again for files of its own. Commands may fail; the job stays whole."""
    script = ["?", "storm takeovers", "calm takeovers", "?"]
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    said = says(job, script[:2])
    for _ in range(10):
        answer = machine.ask("checkpoint", "llm")
        assert answer.code in (0, 3, 4), answer.body
        if answer.code == 0:
            assert machine.ask("restore", "llm").code in (0, 3, 4)
    job.tell(script[2])
    if machine.until_state("llm", "running", "suspended") == "suspended":
        machine.come_back()
    assert [*said, f"{script[2]}: {job.hear()}", *says(job, script[3:])] == expected
    at_last(machine, "checkpoint")
    machine.come_back()
    assert says(job, ["?"]) == expected[-1:]


def test_a_program_that_closes_everything(machine: Machine, rude: str) -> None:
    """The driver's own descriptors, too: bare, the device is lost to it, and it goes on without."""
    script = ["?", "close_everything", "interrupted", f"end {CODE}"]
    job = machine.run("llm", rude)
    said = says(job, script[:1])
    swap(machine)
    said += says(job, script[1:3])
    assert said == bare(machine, [rude], script[:3])
    began = time.monotonic()
    answer = machine.gcr("checkpoint", "llm")
    assert (answer.code, time.monotonic() - began < 15) == (4, True), answer.body
    assert says(job, script[2:3]) == said[2:3]
    job.tell(script[3])
    assert job.supervisor.wait(20) == CODE
    until(lambda: machine.job("llm") is None or None, 20, "it is forgotten")
