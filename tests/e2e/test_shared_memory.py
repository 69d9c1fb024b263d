"""A job whose processes hold memory of each other: off its device and back, as it was."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from machine import Machine, kill
from refusals import refused, untouched
from rings import BOTH, ring, uuids
from stored import away, back, leave_running
from two_devices import three_devices
from worlds import AMD, AMD_LEAK, NVIDIA, at, here

CONTEXT = 16 << 20  # bytes that a context of the simulated device costs
SHARING = [world for world in (NVIDIA, AMD, AMD_LEAK) if world in here()]
EVERYWHERE = pytest.mark.parametrize("machine", [at(each, slow=each is AMD_LEAK) for each in SHARING], indirect=True)


@EVERYWHERE
@BOTH
def test_it_goes_and_comes_back_many_times(machine: Machine, calls: Sequence[str]) -> None:
    job = ring(machine, 3, *calls)
    for turn in range(5):
        gone = machine.leave()
        if machine.where.data_only:
            assert gone.body["vram_after_bytes"] == 3 * CONTEXT  # nothing else stays
        machine.come_back()
        assert job.ask() == str(turn + 2)
        assert job.ask("round") == str(turn + 3)


def test_with_data_only(machine: Machine) -> None:
    job = ring(machine)
    assert machine.gcr("checkpoint", "llm", "--data-only").code == 0
    machine.come_back()
    assert job.ask("round") == "3"


@EVERYWHERE
@BOTH
def test_memory_that_came_back_is_lent_again(machine: Machine, calls: Sequence[str]) -> None:
    job = ring(machine, 3, *calls)
    for turn in range(3):
        machine.leave()
        machine.come_back()
        assert job.ask(f"renew {turn}") == str(turn + 3)


@pytest.mark.parametrize(
    ("machine", "step", "before"),
    [
        at(world, step, before, name=f"{step} {'after a restore' if before else 'first'}")
        for world in (NVIDIA, AMD)
        for step, before in (("quiesced", 0), ("handed_over", 1), ("frozen", 0), ("staged", 1))
        if world in here() and step in world.up_to_the_decision()
    ],
    indirect=["machine"],
)
def test_a_checkpoint_that_fails_leaves_it_running(machine: Machine, step: str, before: int) -> None:
    job = ring(machine)
    for _ in range(before):
        machine.leave()
        machine.come_back()
    machine.inject(f"checkpoint.{step} fail")
    assert machine.ask("checkpoint", "llm", **machine.where.how).code == 4
    assert job.ask("round") == "3"
    machine.leave()
    machine.come_back()
    assert job.ask("round") == "4"


@EVERYWHERE
@pytest.mark.parametrize("step", ["room", "back", "mapped"])
def test_a_restore_that_fails_leaves_it_suspended(machine: Machine, step: str) -> None:
    job = ring(machine)
    machine.leave()
    machine.inject(f"restore.{step} fail")
    assert machine.ask("restore", "llm").code == 4
    machine.come_back()
    assert job.ask("round") == "3"


@EVERYWHERE
@pytest.mark.parametrize(("which", "before"), [(0, 0), (1, 1), (2, 0)])
def test_a_process_that_dies_meanwhile_takes_no_memory_from_the_others(
    machine: Machine, which: int, before: int
) -> None:
    """The checkpoint is taken back, and is refused afterwards: memory of a process that has ended is held."""
    job = ring(machine)
    for _ in range(before):
        machine.leave()
        machine.come_back()
    pids = [*map(int, job.ask("pids").split())]
    with machine.held_at("checkpoint.handed_over"):
        running = machine.command("checkpoint")
        machine.wait_held()
        kill(pids[which])
    answer = running.result(timeout=60)
    assert answer.body["error"]["code"] == "unsupported_state", answer.body
    assert machine.settled() == "running"
    said = job.ask().split()
    assert said[which] == "gone"
    assert [each for n, each in enumerate(said) if n != which] == ["2", "2"]


@EVERYWHERE
def test_an_owner_that_frees_first_keeps_it_for_the_other(machine: Machine) -> None:
    job = ring(machine, 2)
    assert job.ask("free 0") == "ok"
    machine.leave()
    machine.come_back()
    assert job.ask() == "2"


@EVERYWHERE
def test_memory_of_another_job_is_refused_and_both_processes_are_named(machine: Machine) -> None:
    lender, borrower = ring(machine, 2), ring(machine, 2, name="other")
    path = str(machine.folder / "door")
    assert (lender.ask(f"offer {path}"), borrower.ask(f"take {path}")) == ("ok", "ok")
    owner, holder = lender.ask("pids").split()[0], borrower.ask("pids").split()[0]
    for job, says in (
        (lender, f"process {owner} lends device memory to process {holder} of job other"),
        (borrower, f"process {holder} holds 2 MiB of device memory of process {owner} of job llm"),
    ):
        with untouched(machine, job):
            assert says in refused(machine.gcr("checkpoint", job.name, *machine.where.options), "unsupported_state")
    assert borrower.supervisor.stdin
    borrower.supervisor.stdin.close()
    assert borrower.supervisor.wait(30) == 0
    machine.leave()
    machine.come_back()
    assert lender.ask("round") == "3"


@EVERYWHERE
@pytest.mark.parametrize("how", [(), ("--live",)])
def test_images_of_it_while_it_runs_and_while_it_leaves(machine: Machine, how: Sequence[str]) -> None:
    job = ring(machine)
    leave_running(machine, "warm", *how)
    assert job.ask("round") == "3"
    away(machine, "cold", *how)
    assert back(machine, "cold")["ok"]
    assert job.ask("round") == "4"


def test_it_comes_back_on_another_device(tmp_path: Path) -> None:
    machine = three_devices(tmp_path)
    try:
        job = ring(machine)
        for old, new in pairwise(uuids(machine)):
            machine.leave()
            assert machine.ask("restore", "llm", devices={old: new}).code == 0
            assert job.ask() == "2"
        assert job.ask("round") == "3"
    finally:
        machine.close()


# ---- deaths of gcr's own processes ---------------------------------------------------------------------------------

HELPERS = ("gcr.daemon", "gcr.worker", "gcr.control_helper", "supervisor")


STEPS = {
    "checkpoint": ("quiesced", "handed_over", "frozen", "staged", "decided"),
    "restore": ("room", "back", "mapped", "decided"),
}


def deaths() -> Iterator[Any]:
    for world in SHARING:
        known = {"checkpoint": world.checkpoint(), "restore": world.restore()}
        for command, steps in STEPS.items():
            for step in (step for step in steps if step in known[command]):
                yield at(world, command, step, slow=True, name=f"{command}.{step}")  # fast: test_p2p_deaths.py


@pytest.mark.parametrize("who", HELPERS)
@pytest.mark.parametrize(("machine", "command", "step"), [*deaths()], indirect=["machine"])
def test_a_death_of_a_helper_leaves_it_running_or_restorable(
    machine: Machine, who: str, command: str, step: str
) -> None:
    """It has been away before, so that no process can export its memory again."""
    job = ring(machine)
    machine.leave()
    machine.come_back()
    if command == "restore":
        machine.leave()
    with machine.held_at(f"{command}.{step}"):
        running = machine.command(command)
        machine.wait_held()
        kill(*([job.supervisor.pid] if who == "supervisor" else machine.children(who)))
    running.result(timeout=60)
    if machine.settled() != "running":
        machine.come_back()
    assert job.ask() == "2"
    machine.leave()
    machine.come_back()
    assert job.ask("round") == "3"


@EVERYWHERE
def test_when_daemon_and_supervisor_die_together_staged_copies_come_back(machine: Machine) -> None:
    job = ring(machine)
    with machine.held_at("checkpoint.staged"):
        running = machine.command("checkpoint")
        machine.wait_held()
        kill(job.supervisor.pid, *machine.children("gcr.daemon"))
    running.exception(timeout=60)
    if machine.settled() != "running":
        machine.come_back()
    assert job.ask() == "2"
