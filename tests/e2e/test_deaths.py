"""kill -9 of any one process at any step (docs/design.md): the target runs on or is restorable, and a retry succeeds.

Each step in turn on the same job, as long as its supervisor lives: what one death left behind would show at the next.
`pytest -m slow` has the full product.
"""

import signal
from collections.abc import Callable, Iterator, Sequence

import pytest
from machine import ALLOC, Machine, Victim, kill, until
from worlds import AMD, AMD_QUIRKS, ASCEND, NVIDIA, ON_DEVICE, World, at, everywhere, here

Who = Callable[[Machine, Victim], list[int]]


def gcrd(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.daemon")


def worker(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.worker")


def control_helper(machine: Machine, _job: Victim) -> list[int]:
    return machine.children("gcr.control_helper")


def supervisor(_machine: Machine, job: Victim) -> list[int]:
    return [job.supervisor.pid]


def target(machine: Machine, job: Victim) -> list[int]:
    return [pid for pid in machine.children(ALLOC) if pid != job.supervisor.pid]  # its command line names it as well


OURS: Sequence[Who] = (gcrd, worker, control_helper, supervisor)
MOST_DANGEROUS = {"checkpoint": "handed_over", "restore": "refilled"}


def strike(machine: Machine, job: Victim, who: Who, command: str, step: str) -> None:
    """Kills a process while the command stands at the step."""
    with machine.held_at(f"{command}.{step}"):
        running = machine.command(command)
        machine.wait_held()
        condemned = who(machine, job)
        assert condemned, f"no process to kill at {command}.{step}"
        kill(*condemned)
    running.result(timeout=60)


def survives(machine: Machine, who: Who, command: str, steps: Sequence[str]) -> None:
    job, before = machine.start()
    for step in steps:
        if job.supervisor.poll() is not None:
            machine.end(job)
            job, before = machine.start()
        if command == "restore":
            machine.leave()
        try:
            strike(machine, job, who, command, step)
            machine.comes_back(job, before)
        except BaseException as error:
            error.add_note(f"{who.__name__} died at {command}.{step}")
            raise


def takes_part(world: World, who: Who, command: str) -> bool:
    """A checkpoint of data alone that workers drain asks no control helper."""
    return not (who is control_helper and command == "checkpoint" and world.data_only and not world.copies)


def deaths(command: str, everybody: Sequence[Who]) -> pytest.MarkDecorator:
    """Returns every process at every step of every world; `slow` if NVIDIA's, or the daemon's death, stands for it.

    A row that is not slow has only the step at which most is in flight. On a device each step is a test of its
    own, for its deadline.
    """
    rows = []
    for world in here():
        for who in (who for who in everybody if takes_part(world, who, command)):
            for steps, slow in parts(world, who, getattr(world, command)(), MOST_DANGEROUS[command]):
                name = f"{who.__name__}-{steps[0]}" if len(steps) == 1 else who.__name__
                rows.append(at(world, who, steps, slow=slow, name=name))
    return pytest.mark.parametrize("machine, who, steps", rows, indirect=["machine"])


def parts(world: World, who: Who, steps: Sequence[str], danger: str) -> Iterator[tuple[Sequence[str], bool]]:
    """Steps that one job goes through, and whether they are for the slow tests."""
    if ON_DEVICE:
        yield from (([step], False) for step in steps)
    elif world is NVIDIA and who is not target:
        yield steps, False
    else:
        yield [danger], world not in (NVIDIA, ASCEND) and not (world is AMD_QUIRKS and who is gcrd)
        yield [step for step in steps if step != danger], True


@deaths("checkpoint", OURS)
def test_a_death_during_a_checkpoint(machine: Machine, who: Who, steps: Sequence[str]) -> None:
    survives(machine, who, "checkpoint", steps)


@deaths("restore", OURS)
def test_a_death_during_a_restore(machine: Machine, who: Who, steps: Sequence[str]) -> None:
    survives(machine, who, "restore", steps)


@deaths("checkpoint", [target])
def test_the_target_dies_in_a_checkpoint(machine: Machine, who: Who, steps: Sequence[str]) -> None:
    is_released(machine, who, "checkpoint", steps)


@deaths("restore", [target])
def test_the_target_dies_in_a_restore(machine: Machine, who: Who, steps: Sequence[str]) -> None:
    is_released(machine, who, "restore", steps)


def is_released(machine: Machine, who: Who, command: str, steps: Sequence[str]) -> None:
    """Everything of it, step after step; then another finds the device as it should be."""
    for step in steps:
        job, _ = machine.start()
        if command == "restore":
            machine.leave()
        strike(machine, job, who, command, step)
        assert job.supervisor.wait(timeout=20) == 128 + signal.SIGKILL, step
        until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    again, before = machine.start()
    machine.comes_back(again, before)


def test_the_caller_leaves_and_the_checkpoint_is_taken_back(machine: Machine) -> None:
    job, before = machine.start()
    with machine.held_at("checkpoint.quiesced"):
        running = machine.begin("checkpoint", "llm")
        machine.wait_held()
        machine.leaves(running.kill)
    machine.until_state("llm", "running")
    assert job.ask() == before


@everywhere(slow=[AMD, AMD_QUIRKS, ASCEND])
def test_two_daemons_die_one_after_the_other(machine: Machine) -> None:
    job, before = machine.start()
    strike(machine, job, gcrd, "checkpoint", "handed_over")
    machine.settled()
    assert job.ask() == before
    kill(*gcrd(machine, job))
    machine.comes_back(job, before)


@everywhere(slow=[NVIDIA, AMD, AMD_QUIRKS])
def test_a_suspended_job_outlives_the_daemon_and_its_worker(machine: Machine) -> None:
    job, before = machine.start()
    machine.leave()
    kill(*gcrd(machine, job), *worker(machine, job))
    assert machine.settled() == machine.where.suspended
    machine.comes_back(job, before)


@everywhere(slow=[AMD, AMD_QUIRKS])
def test_the_supervisor_dies_and_then_the_checkpoint_fails(machine: Machine) -> None:
    """Handed-over memory is only in the daemon's own escrow: imported memory cannot be exported again."""
    job, before = machine.start()
    held = machine.folder / "held"
    machine.inject(f"checkpoint.handed_over hold {held}", "checkpoint.staged fail")
    running = machine.command("checkpoint")
    machine.wait_held()
    kill(job.supervisor.pid)
    held.unlink()
    assert running.result(timeout=60).code != 0
    assert machine.settled() == "running"
    machine.comes_back(job, before)
