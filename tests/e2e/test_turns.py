"""Two jobs come back at once to a device that has room for one.

A driver that finds too little room for a process never gives it back, so nothing takes the room that was held for it.
"""

from collections.abc import Callable

import pytest
from machine import Machine, Victim, until

MIB = 1 << 20
PAUSE = 0.5  # seconds for the second restore to come as far as it can


def of_gcr(machine: Machine, name: str) -> tuple[Victim, str | int]:
    """Two of these fit if one does without its context."""
    machine.memory = 96 * MIB
    return machine.told(name, f"alloc 1 {24 * MIB}"), name


def stranger(machine: Machine, _name: str) -> tuple[Victim, str | int]:
    """The driver alone carries such a program; one fits."""
    machine.memory = 200 * MIB
    victim = machine.stranger()
    victim.ask(f"alloc 1 {110 * MIB}")
    return victim, victim.supervisor.pid


@pytest.mark.parametrize("start", [of_gcr, stranger])
def test_a_driver_finds_the_room_that_was_held_for_it(
    machine: Machine, start: Callable[[Machine, str], tuple[Victim, str | int]]
) -> None:
    jobs: dict[str | int, tuple[Victim, str | int]] = {}
    for each in ("first", "second"):
        job, name = start(machine, each)
        jobs[name] = job, job.ask()
        assert machine.ask("checkpoint", name).code == 0
    first, second = jobs
    with machine.held_at("restore.yielded"):
        one = machine.command("restore", first)
        until((machine.folder / "held").exists, 10, "the driver may take its room")
        other = machine.command("restore", second)
        with pytest.raises(TimeoutError):
            other.result(PAUSE)
    assert (one.result().code, one.result().body.get("state")) == (0, "running"), one.result().body
    error = other.result().body["error"]
    assert (other.result().code, error["code"], error["state"]) == (3, "no_room", "suspended"), error
    assert jobs[first][0].ask() == jobs[first][1]
    assert machine.ask("checkpoint", first).code == 0
    assert machine.ask("restore", second).code == 0
    assert jobs[second][0].ask() == jobs[second][1]
