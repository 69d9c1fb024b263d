"""Programs that end while they are suspended, each in its own way, and programs that have nothing to lose."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from machine import ROOT, VICTIMS, Answer, Machine, kill, until
from worlds import AMD, AMD_QUIRKS, ASCEND_DATA, NVIDIA, at, everywhere, slowly

from gcr.processes import parent_pid

sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import endings

CODE = 5
WAYS = {
    "exit": f"import ctypes; ctypes.CDLL(None).exit({CODE})",  # exit handlers and destructors, the driver's too
    "_exit": f"import os; os._exit({CODE})",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}


@everywhere(slow=[AMD, AMD_QUIRKS])
@pytest.mark.parametrize("way", ["exit", slowly("_exit"), slowly("signal")])
def test_a_program_ends_while_it_is_suspended(machine: Machine, way: str) -> None:
    """exit() needs the driver: it goes on when the program is restored. The other ways end the program at once."""
    neighbour = machine.told("neighbour")
    before = neighbour.ask()
    job = machine.told("llm")
    job.ask("later 4 " + WAYS[way].encode().hex() + "h")
    if machine.where.keeps_context and not machine.where.data_only:
        machine.end(neighbour)  # a second one there is not left beside one that is suspended
    assert machine.gcr("checkpoint", "llm", *machine.where.options).code == 0
    if way == "exit":
        time.sleep(4.5)
        assert machine.job("llm")["state"] == machine.where.suspended  # type: ignore[index]
        assert machine.gcr("restore", "llm").code == 0
    assert job.supervisor.wait(20) == (143 if way == "signal" else CODE)
    until(lambda: machine.job("llm") is None or None, 10, "it is forgotten")
    if neighbour.supervisor.poll() is None:
        assert neighbour.ask() == before
        assert machine.gcr("checkpoint", "neighbour", *machine.where.options).code == 0
        assert machine.gcr("restore", "neighbour").code == 0
        assert neighbour.ask() == before


@pytest.fixture
def ending(machine: Machine, tmp_path: Path) -> Path:
    """The program of tests/victims/ending_victim.c."""
    return endings.compiled(tmp_path, machine.vendor)


def meets(machine: Machine, program: Path, ways: Sequence[str], instants: int) -> None:
    """Programs that end at so many random instants around each a swap of their job, in each of these ways."""
    machine.daemon()
    run = endings.Run(program, machine.env, machine.connected, machine.world, ways, instants, how=machine.where.how)
    found = run.go()
    assert found["ok"], {way: tally["failures"] for way, tally in found["ways"].items()}


SHARING = [at(world) for world in (NVIDIA, AMD, ASCEND_DATA)]  # processes of one job may share a device there


@pytest.mark.parametrize("machine", SHARING, indirect=True)
def test_programs_end_at_any_instant(machine: Machine, ending: Path) -> None:
    meets(machine, ending, endings.WAYS, 3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", endings.WAYS)
@pytest.mark.parametrize("machine", SHARING, indirect=True)
def test_programs_end_at_very_many_instants(machine: Machine, ending: Path, way: str) -> None:
    meets(machine, ending, [way], int(os.environ.get("SOAK_CYCLES", "1000")))


def test_a_job_in_its_last_exit_handlers_is_refused(machine: Machine, ending: Path) -> None:
    """The driver has shut down: there is nothing to suspend, and the program ends as it would have."""
    machine.extra["ENDING_HANDLER_MS"] = "3000"
    job = machine.run("llm", str(ending), "handlers", "0", str(CODE), ready=False)
    assert job.hear() == "up"
    answer = until(lambda: ended_or_refused(machine), 20, "it is in its last handler")
    assert (answer.code, answer.body["error"]["code"]) == (3, "job_ending"), answer.body
    assert "ending" in answer.body["error"]["message"]
    assert job.supervisor.wait(20) == CODE


def ended_or_refused(machine: Machine) -> Answer | None:
    """None while the program was suspended, and restored."""
    answer = machine.ask("checkpoint", "llm")
    if answer.code:
        return answer
    assert machine.ask("restore", "llm").code == 0
    return None


GONE = ("cuMemImportFromShareableHandle", "cuCtxGetCurrent")  # answer as of a driver that has shut down


@pytest.mark.parametrize("command", ["checkpoint", "restore"])
def test_a_driver_that_shuts_down_while_its_memory_is_elsewhere(machine: Machine, command: str) -> None:
    """One of two: nothing can come back to it, and its gate opens. The command succeeds with the other one."""
    job = machine.run("pair", sys.executable, str(VICTIMS / "pair_victim.py"), "--late")
    pids = machine.targets("pair", 2)
    (child,) = [pid for pid in pids if parent_pid(pid) in pids]
    step, held = {"checkpoint": "handed_over", "restore": "room"}[command], machine.folder / "held"
    if command == "restore":
        assert machine.ask("checkpoint", "pair").code == 0
    fail = [f"{command}.{step} fail"] if command == "checkpoint" else []
    machine.inject(f"{command}.{step} hold {held}", *fail)
    running = machine.command(command, "pair")
    machine.wait_held()
    (machine.simulated / "faults").write_text("\n".join(f"{call}@{child}:1+:fail=4" for call in GONE))
    held.unlink()
    answer = running.result(timeout=60)
    assert answer.code == 0, answer.body
    if command == "checkpoint":
        assert machine.job("pair")["state"] == "suspended"  # type: ignore[index]
        assert machine.ask("restore", "pair").code == 0
    said = job.ask()
    assert said.startswith("parent 3 held, digest"), said  # and the child was not left at a closed gate


@everywhere(slow=[AMD, AMD_QUIRKS])
def test_a_command_right_after_the_daemons_death_finds_the_job(machine: Machine) -> None:
    job = machine.told("llm", "alloc 3 100000")
    before = job.ask()
    for command, options in (("checkpoint", machine.where.options), ("restore", ())) * 2:
        kill(machine.daemon())
        answer = machine.gcr(command, "llm", *options)
        assert answer.code == 0, answer.body
    assert job.ask() == before


EMPTY = f"""
import sys; sys.path.insert(0, {str(VICTIMS)!r})
from device import open_device
from dialogue import serve
device = open_device(sys.argv[1])
device.free(device.allocate(8 << 20))  # HIP has no context before
serve(lambda: "here")
"""


@everywhere(slow=[AMD, AMD_QUIRKS])
@pytest.mark.parametrize("daemon_dies", [False, True])
def test_a_program_without_device_memory(machine: Machine, daemon_dies: bool) -> None:
    """It has a context and nothing else; some never come to more, and every program begins so."""
    job = machine.run("llm", sys.executable, "-c", EMPTY, machine.vendor)
    for _ in range(2):
        gone = machine.gcr("checkpoint", "llm", *machine.where.options)
        assert (gone.code, gone.body.get("bytes")) == (0, 0), gone.body
        if daemon_dies:
            kill(machine.daemon())
            machine.settled()
        back = machine.gcr("restore", "llm")
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        assert job.ask() == "here"


@pytest.mark.slow
@pytest.mark.parametrize("daemon_dies", [False, True])
def test_an_orphan_is_forgotten_at_its_end(machine: Machine, daemon_dies: bool) -> None:
    """Its supervisor died, and the daemon that it has may never have heard of any."""
    job = machine.told("llm")
    pid = machine.target("llm")
    kill(job.supervisor.pid)
    job.supervisor.wait(10)
    if daemon_dies:
        kill(*machine.children("gcr.daemon"))
        machine.daemon()
    assert machine.target("llm") == pid
    kill(pid)
    until(lambda: machine.job("llm") is None or None, 10, "it is forgotten")


def _as_shown(machine: Machine) -> tuple[object, ...] | None:
    job = machine.job("llm")
    return job and (job["pid"], job["command"], job["started"], [row["label"] for row in job["processes"]])


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "running"])
def test_an_orphan_is_shown_by_the_next_daemon_as_before(machine: Machine, suspended: bool) -> None:
    """No supervisor tells it the program, and no process of a suspended job asks for devices."""
    job = machine.told("llm", "alloc 3 100000")
    before = until(lambda: (row := _as_shown(machine)) and None not in row[3] and row, 20, "it has a label")
    assert "told_victim.py" in before[1][-1]
    if suspended:
        machine.leave()
    kill(job.supervisor.pid)
    job.supervisor.wait(10)
    kill(*machine.children("gcr.daemon"))
    machine.daemon()
    until(lambda: _as_shown(machine) == before or None, 20, "all of it is known again")
