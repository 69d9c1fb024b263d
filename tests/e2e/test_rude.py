"""Programs without manners: bare and under gcr they say the same, with checkpoints before, while and after.

What is rude is a word of tests/victims/rude. A storm does it over and over, so that cuts meet every instant of it.
"""

import time

import pytest
from machine import Machine
from rude import bare, program, says, swap

SWAPS = 6
STORMS = ["faults", "realtime", "children", "ids", "cancels", "small", "full", "resets"]


@pytest.fixture(scope="session")
def rude(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program(tmp_path_factory.mktemp("rude"))


@pytest.mark.parametrize("storm", STORMS)
def test_a_storm(machine: Machine, rude: str, storm: str) -> None:
    """Signals, children, ids, cancelled and tiny threads, a device that is full, contexts that are reset."""
    machine.devices = 2
    script = ["?", f"storm {storm}", f"calm {storm}", "?"]
    expected = bare(machine, [rude], script)
    job = machine.run("llm", rude)
    said = says(job, script[:1])
    swap(machine)
    said += says(job, script[1:2])
    for _ in range(SWAPS):
        time.sleep(0.05)
        swap(machine)
    said += says(job, script[2:3])
    swap(machine)
    assert said + says(job, script[3:]) == expected


def test_a_timer_whose_handler_uses_the_device(machine: Machine, rude: str) -> None:
    script = ["?", "alarms", "end_alarms", "?"]
    expected = bare(machine, [rude], ["?", "alarms", "?", "end_alarms", "?"])
    job = machine.run("llm", rude)
    said = says(job, script[:2])
    for _ in range(SWAPS):
        time.sleep(0.05)
        swap(machine)
    said += says(job, ["?", *script[2:]])
    assert said == expected


def test_calls_that_wait_are_not_interrupted(machine: Machine, rude: str) -> None:
    job = machine.run("llm", rude)
    assert job.ask("waits") == "ok"
    for _ in range(SWAPS):
        swap(machine)
    assert job.ask("interrupted") == "0 interrupted"
    assert says(job, ["interrupt", "interrupted"]) == ["interrupt: ok", "interrupted: 1 interrupted"]


def test_a_crowd(machine: Machine, rude: str) -> None:
    """Hundreds of threads; those that came meanwhile wait at the gate."""
    expected = bare(machine, [rude], ["crowd 400", "?"])
    job = machine.run("llm", rude)
    swap(machine)
    machine.leave()
    job.tell("crowd 400")
    assert job.silent(0.5)
    machine.come_back()
    assert [f"crowd 400: {job.hear()}", *says(job, ["?"])] == expected
    swap(machine)
    assert says(job, ["?"]) == expected[1:]
