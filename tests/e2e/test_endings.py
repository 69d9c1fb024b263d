"""Programs that end while they are suspended, each in its own way, and programs that have nothing to lose."""

import sys

import pytest
from machine import VICTIMS, Machine, kill, until
from worlds import AMD, AMD_QUIRKS, everywhere, slowly

CODE = 5
WAYS = {
    "exit": f"import ctypes; ctypes.CDLL(None).exit({CODE})",  # exit handlers and destructors, the driver's too
    "_exit": f"import os; os._exit({CODE})",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}


@everywhere(slow=[AMD, AMD_QUIRKS])
@pytest.mark.parametrize("way", ["exit", slowly("_exit"), slowly("signal")])
def test_a_program_ends_while_it_is_suspended(machine: Machine, way: str) -> None:
    neighbour = machine.told("neighbour")
    before = neighbour.ask()
    job = machine.told("llm")
    job.ask("later 4 " + WAYS[way].encode().hex() + "h")
    if machine.where.keeps_context and not machine.where.data_only:
        machine.end(neighbour)  # a second one there is not left beside one that is suspended
    assert machine.gcr("checkpoint", "llm", *machine.where.options).code == 0
    assert job.supervisor.wait(20) == (143 if way == "signal" else CODE)
    until(lambda: machine.job("llm") is None or None, 10, "it is forgotten")
    if neighbour.supervisor.poll() is None:
        assert neighbour.ask() == before
        assert machine.gcr("checkpoint", "neighbour", *machine.where.options).code == 0
        assert machine.gcr("restore", "neighbour").code == 0
        assert neighbour.ask() == before


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
