"""Strategy `copyout`: no room for a worker's context, or a runtime that exports nothing; the agent copies itself.

A runtime that exports nothing is a world of its own (worlds.NOEXPORT): its swaps, faults and deaths are elsewhere.
"""

import json
import sys
from typing import Any

import pytest
from machine import VICTIMS, Machine, Victim, kill
from worlds import NOEXPORT

MIB = 1 << 20
SLOW = pytest.mark.slow
CONTEXT = 16 * MIB  # what a context of the simulated device costs
GRANULE = 2 * MIB


@pytest.fixture
def crowded(machine: Machine) -> Machine:
    """No worker is started before a checkpoint asks for one."""
    machine.extra["GCR_PREPARE_ARENA"] = "0"
    return machine


@pytest.fixture
def closed(machine: Machine) -> Machine:
    """A runtime that exports no descriptors."""
    machine.where = NOEXPORT
    machine.extra |= {**NOEXPORT.environment(), "GCR_PREPARE_ARENA": "0"}
    return machine


def slow_but(always: Any, *others: Any) -> list[Any]:
    """The parameters of a test; the first one runs every time."""
    return [always, *(pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=SLOW) for each in others)]


def start(machine: Machine) -> tuple[Victim, str]:
    """A job with small and large allocations and VMM handles of its own."""
    job = machine.told("llm")
    job.ask("mixed 30 1000 9000000")
    job.ask("free_some 7")
    job.ask("handles 12 0")
    return job, job.ask()


def crowd(machine: Machine, leave: int = CONTEXT - GRANULE) -> Victim:
    """Another program takes all but so many bytes: too few for one more context."""
    hog = machine.stranger()
    free = free_bytes(machine)
    assert int(hog.ask(f"take {free - leave}")) == free - leave
    return hog


def free_bytes(machine: Machine) -> int:
    asked = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).free)"
    return int(machine.bare(sys.executable, "-c", asked))


def workers_hold(machine: Machine) -> int:
    """Bytes the device counts for gcr's workers: their contexts."""
    asked = (
        "import pynvml as n; n.nvmlInit()\n"
        "rows = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))\n"
        f"print(sum(row.usedGpuMemory for row in rows if row.pid in {machine.children('gcr.worker')}))"
    )
    return int(machine.bare(sys.executable, "-c", asked))


def leaves(hog: Victim) -> None:
    hog.supervisor.kill()
    hog.supervisor.wait(10)


def test_a_full_device_is_copied_out_and_back(crowded: Machine) -> None:
    job, before = start(crowded)
    hog = crowd(crowded)
    gone = crowded.gcr("checkpoint", "llm")
    assert gone.code == 0, gone.body
    assert gone.body["strategy"] == "copyout"
    assert {row["strategy"] for row in gone.body["processes"]} == {"copyout"}
    assert gone.body["vram_after_bytes"] == 0
    assert gone.body["bytes"] == sum(row["covered_bytes"] for row in gone.body["processes"]) > 40 * MIB
    assert {row["strategy"] for row in crowded.job("llm")["processes"]} == {"copyout"}

    taker = crowded.stranger()
    assert int(taker.ask("everything")) > gone.body["bytes"]
    refused = crowded.gcr("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room")
    assert refused.body["error"]["state"] == "suspended"
    assert refused.body["error"]["missing"] >= gone.body["bytes"] - CONTEXT
    leaves(taker)

    back = crowded.gcr("restore", "llm")
    assert back.code == 0, back.body
    assert back.body["bytes"] == gone.body["bytes"]
    assert job.ask() == before
    leaves(hog)


def test_it_comes_back_without_room_for_a_context(crowded: Machine) -> None:
    """Its room is taken but for its own share: no worker can have a context, so its agent copies in as it did out."""
    job, before = start(crowded)
    hog = crowd(crowded)
    assert crowded.children("gcr.worker") == []
    for _ in range(2):
        gone = crowded.gcr("checkpoint", "llm")
        assert gone.code == 0, gone.body
        assert gone.body["strategy"] == "copyout"
        back = crowded.gcr("restore", "llm")
        assert back.code == 0, back.body
        assert workers_hold(crowded) == 0
        assert job.ask() == before
    leaves(hog)
    gone = crowded.gcr("checkpoint", "llm")
    assert (gone.code, gone.body.get("strategy")) == (0, "handoff"), gone.body
    assert crowded.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_a_runtime_that_exports_nothing(closed: Machine) -> None:
    job, before = start(closed)
    assert {row["strategy"] for row in closed.job("llm")["processes"]} == {"copyout"}
    for _ in range(2):
        gone = closed.gcr("checkpoint", "llm")
        assert gone.code == 0, gone.body
        assert (gone.body["strategy"], gone.body["state"], gone.body["vram_after_bytes"]) == ("copyout", "suspended", 0)
        assert gone.body["bytes"] == sum(row["covered_bytes"] for row in gone.body["processes"]) > 40 * MIB
        taker = closed.stranger()
        assert int(taker.ask("everything")) > gone.body["bytes"]
        refused = closed.gcr("restore", "llm")
        assert (refused.code, refused.body["error"]["code"], refused.body["error"]["state"]) == (
            3,
            "no_room",
            "suspended",
        )
        leaves(taker)
        back = closed.gcr("restore", "llm")
        assert back.code == 0, back.body
        assert job.ask() == before


@pytest.mark.slow
@pytest.mark.parametrize("where", ["crowded", "closed"])
def test_data_alone(where: str, request: pytest.FixtureRequest) -> None:
    machine: Machine = request.getfixturevalue(where)
    job, before = start(machine)
    if where == "crowded":
        crowd(machine)
    gone = machine.ask("checkpoint", "llm", data_only=True)
    assert gone.code == 0, gone.body
    assert (gone.body["strategy"], gone.body["state"]) == ("copyout", "data_suspended")
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


def test_two_processes_and_bytes_on_the_way(closed: Machine) -> None:
    closed.extra["GCR_SIM_BPS"] = str(40 * MIB)
    pair = closed.run("llm", sys.executable, str(VICTIMS / "pair_victim.py"))
    closed.targets("llm", 2)
    before = pair.ask()
    for command, phase in (("checkpoint", "draining"), ("restore", "refilling")):
        told: list[dict[str, Any]] = []
        with closed.connected() as client:
            answer = client.request(command, {"target": "llm"}, timeout=60, on_progress=told.append)
        moving = [report for report in told if report["phase"] == phase and report["total_bytes"]]
        assert len({report["bytes"] for report in moving}) > 2
        assert all(report["bytes"] <= report["total_bytes"] for report in moving)
        assert answer["bytes"] >= sum({report["total_bytes"] for report in moving}) > 0
    assert pair.ask() == before


# ---- what fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", slow_but("frozen", "copied_out"))
def test_on_a_full_device_a_checkpoint_that_fails_leaves_the_job_running(crowded: Machine, step: str) -> None:
    job, before = start(crowded)
    crowd(crowded)
    crowded.inject(f"checkpoint.{step} fail")
    assert crowded.ask("checkpoint", "llm").code == 4
    assert job.ask() == before
    comes_back(crowded, job, before)


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    """Brings the job back from any state, swaps it once more, and checks that it is unchanged."""
    if machine.until_state("llm", "running", "suspended", "data_suspended") != "running":
        back = machine.ask("restore", "llm")
        assert back.code == 0, back.body
    assert job.ask() == before
    gone = machine.ask("checkpoint", "llm")
    assert gone.code == 0, gone.body
    assert gone.body["strategy"] == "copyout"
    back = machine.ask("restore", "llm")
    assert back.code == 0, back.body
    assert job.ask() == before


# ---- the room is taken meanwhile ------------------------------------------------------------------------------------


def take_the_room(machine: Machine) -> Victim:
    """All that is free but what the driver needs for itself."""
    taker = machine.stranger()
    assert int(taker.ask(f"take {free_bytes(machine) - CONTEXT - 4 * MIB}")) > 30 * MIB
    return taker


def test_a_rollback_without_room_leaves_the_job_suspended(closed: Machine) -> None:
    """Released memory is in no escrow: the job is not lost, it waits for the room."""
    job, before = start(closed)
    held = closed.folder / "held"
    closed.inject(f"checkpoint.frozen hold {held}", "checkpoint.staged fail")
    running = closed.begin("checkpoint", "llm", "--timeout", "40")
    closed.wait_held()
    taker = take_the_room(closed)
    held.unlink()
    said, _ = running.communicate(timeout=60)
    error = json.loads(said)["error"]
    assert (error["code"], error["exit"], error["state"]) == ("not_taken_back", 4, "data_suspended"), error
    assert error["missing"] > 0
    assert "restore" in error["hint"]
    assert job.silent()

    refused = closed.ask("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room"), refused.body
    assert closed.job("llm")["state"] == "data_suspended"
    kill(*closed.children("gcr.daemon"))
    assert closed.until_state("llm", "data_suspended")
    leaves(taker)
    comes_back(closed, job, before)


@pytest.mark.slow
@pytest.mark.parametrize("leave", [-12 * MIB, 0])
def test_one_of_two_processes_finds_no_room(closed: Machine, leave: int) -> None:
    """A process with room runs on; a restore brings the rest."""
    pair = closed.run("llm", sys.executable, str(VICTIMS / "pair_victim.py"))
    closed.targets("llm", 2)
    before = pair.ask()
    held = closed.folder / "held"
    closed.inject(f"checkpoint.frozen hold {held}", "checkpoint.staged fail")
    running = closed.begin("checkpoint", "llm", "--timeout", "40")
    closed.wait_held()
    taker = closed.stranger()
    taker.ask(f"take {free_bytes(closed) - 3 * CONTEXT - leave}")
    held.unlink()
    said, _ = running.communicate(timeout=60)
    assert json.loads(said)["error"]["code"] == "not_taken_back", said
    states = {row["state"] for row in closed.job("llm")["processes"]}
    assert states == ({"data_suspended"} if leave else {"data_suspended", "running"})
    leaves(taker)
    back = closed.ask("restore", "llm")
    assert back.code == 0, back.body
    assert {row["state"] for row in closed.job("llm")["processes"]} == {"running"}
    assert pair.ask() == before
    assert closed.ask("checkpoint", "llm").code == 0
    assert closed.ask("restore", "llm").code == 0
    assert pair.ask() == before


@pytest.mark.slow
def test_a_daemon_dies_and_there_is_no_room_to_go_back(closed: Machine) -> None:
    """The next daemon finds no decision and no room: it leaves the job suspended as well."""
    job, before = start(closed)
    with closed.held_at("checkpoint.frozen"):
        running = closed.begin("checkpoint", "llm", "--timeout", "40")
        closed.wait_held()
        taker = take_the_room(closed)
        kill(*closed.children("gcr.daemon"))
    running.communicate(timeout=60)
    assert closed.until_state("llm", "data_suspended")
    refused = closed.ask("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room"), refused.body
    leaves(taker)
    comes_back(closed, job, before)


# ---- deaths ---------------------------------------------------------------------------------------------------------


def strike(machine: Machine, job: Victim, who: str, step: str) -> None:
    """Kills a process of gcr while a checkpoint stands at the step."""
    with machine.held_at(f"checkpoint.{step}"):
        running = machine.command("checkpoint")
        machine.wait_held()
        kill(*([job.supervisor.pid] if who == "supervisor" else machine.children(f"gcr.{who}")))
    running.result(timeout=60)


FULL_DEVICE_DEATHS = slow_but(("worker", "quiesced"), ("daemon", "frozen"), ("supervisor", "handed_over"))


@pytest.mark.parametrize("who, step", FULL_DEVICE_DEATHS)
def test_a_death_on_a_full_device(crowded: Machine, who: str, step: str) -> None:
    job, before = start(crowded)
    crowd(crowded)
    strike(crowded, job, who, step)
    comes_back(crowded, job, before)
