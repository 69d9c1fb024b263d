"""`gcr restore JOB --without PID`: the driver does not give one process back, and the others come back without it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from machine import VICTIMS, Answer, Machine, Victim, kill, until
from p2p import driver_does
from rings import BOTH, ring
from test_orphans import ends_clean
from worlds import SLOW, slowly

from gcr import schemas

FOR_GOOD = "checkpoint.recreated@{}:*:fail=999"  # the driver is half-way, and the process is lost
EACH_TIME = "checkpoint.restore@{}:*:fail=999"  # the process stays checkpointed


def pids(job: Victim) -> list[int]:
    return [*map(int, job.ask("pids").split())]


def states(machine: Machine) -> dict[int, str]:
    found = machine.job("llm")
    assert found
    return {each["pid"]: each["state"] for each in found["processes"]}


def refused(answer: Answer, code: str) -> dict[str, Any]:
    error: dict[str, Any] = answer.body["error"]
    assert error["code"] == code, error
    return error


def loses(machine: Machine, *lost: int, how: str = FOR_GOOD) -> dict[str, Any]:
    """The job is suspended, and its restore fails, since the driver does not give these back. Returns the error."""
    machine.leave()
    driver_does(machine, *(how.format(pid) for pid in lost))
    return refused(machine.ask("restore", "llm", timeout=20.0 if how == FOR_GOOD else 2.0), WHY[how])


WHY = {FOR_GOOD: "process_lost", EACH_TIME: "driver_error"}


def comes_back_without(machine: Machine, *lost: int) -> None:
    options = [word for pid in lost for word in ("--without", str(pid))]
    back = machine.gcr("restore", "llm", *options)
    assert (back.code, back.body.get("state"), back.body.get("without")) == (0, "running", sorted(lost)), back.body
    jsonschema.Draft202012Validator(schemas.load("restore")).validate(back.body)
    assert not {*lost} & {*states(machine)}


def others_are_whole(job: Victim, count: int, *dead: int) -> None:
    """Checks that each of the others has every word as the last round left it; one word stands for all the same."""
    said = ["gone" if rank in dead else "2" for rank in range(count)]
    assert job.ask().split() == (said if dead else ["2"])


@BOTH
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("rank", [0, slowly(1)])
def test_the_others_stay_suspended_and_come_back_when_asked(
    machine: Machine, calls: Sequence[str], count: int, rank: int
) -> None:
    job = ring(machine, count, *calls)
    lost = pids(job)[rank]
    error = loses(machine, lost)
    assert (error["exit"], error["state"]) == (5, "suspended")
    assert f"process {lost} " in error["message"] and f"gcr restore llm --without {lost}" in error["hint"]
    assert machine.settled() == "suspended"
    assert states(machine) == {pid: "lost" if pid == lost else "suspended" for pid in pids(job)}
    again = machine.ask("restore", "llm")
    assert refused(again, "process_lost")["state"] == "suspended"
    comes_back_without(machine, lost)
    others_are_whole(job, count, rank)
    ends_clean(machine, job)


def test_two_are_lost_and_both_must_be_named(machine: Machine) -> None:
    job = ring(machine)
    first, second, _ = pids(job)
    error = loses(machine, first, second)
    assert f"gcr restore llm --without {first} --without {second}" in error["hint"]
    one = machine.gcr("restore", "llm", "--without", str(first))
    assert f"--without {first} --without {second}" in refused(one, "process_lost")["hint"]
    assert states(machine)[first] == "lost", "nothing was touched"
    comes_back_without(machine, first, second)
    others_are_whole(job, 3, 0, 1)


def test_the_library_does_the_same(machine: Machine) -> None:
    job = ring(machine, 2)
    lost = pids(job)[1]
    loses(machine, lost)
    program = "import gcr, sys; print(gcr.attach('llm').restore(without=[int(sys.argv[1])]).without)"
    words = [sys.executable, "-c", program, str(lost)]
    done = subprocess.run(words, env=machine.env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"({lost},)\n", done.stderr
    others_are_whole(job, 2, 1)


def test_nothing_is_ended_for_a_restore_that_cannot_begin(machine: Machine) -> None:
    job = ring(machine, 2)
    stopped, lost = pids(job)
    loses(machine, lost)
    nowhere = machine.gcr("restore", "llm", "--without", str(lost), "--device", "0=7")
    refused(nowhere, "wrong_device")
    os.kill(stopped, signal.SIGSTOP)
    refused(machine.gcr("restore", "llm", "--without", str(lost)), "wrong_state")
    os.kill(stopped, signal.SIGCONT)
    assert states(machine) == {stopped: "suspended", lost: "lost"}
    comes_back_without(machine, lost)
    others_are_whole(job, 2, 1)


def test_it_is_for_one_job(machine: Machine) -> None:
    answer = machine.gcr("restore", "llm", "other", "--without", "4711")
    assert (answer.code, answer.body["error"]["code"]) == (2, "usage")


def test_a_driver_that_refuses_each_time(machine: Machine) -> None:
    """The process is suspended as the others, and comes back if the driver has thought better of it."""
    job = ring(machine)
    lost = pids(job)[0]
    error = loses(machine, lost, how=EACH_TIME)
    assert (error["exit"], error["state"]) == (4, "suspended")
    assert f"process {lost} " in error["message"] and f"gcr restore llm --without {lost}" in error["hint"]
    driver_does(machine)
    machine.come_back()
    others_are_whole(job, 3)
    loses(machine, lost, how=EACH_TIME)
    kill(*machine.children("gcr.daemon"))
    assert machine.settled() == "suspended"
    comes_back_without(machine, lost)
    others_are_whole(job, 3, 0)


def test_what_may_not_be_given_up_is_refused_and_nothing_is_touched(machine: Machine) -> None:
    job = ring(machine, 2)
    first, second = pids(job)
    refused(machine.ask("restore", "llm", without=[first]), "wrong_state")
    machine.leave()
    for pid in (first, second):
        assert "has not refused" in refused(machine.ask("restore", "llm", without=[pid]), "not_lost")["message"]
    driver_does(machine, FOR_GOOD.format(first))
    refused(machine.ask("restore", "llm"), "process_lost")
    for pids_named, said in (
        ([second], "has not refused"),
        ([first, second], "has not refused"),
        ([1], "is none of job"),
        ([first, 1], "is none of job"),
    ):
        error = refused(machine.ask("restore", "llm", without=pids_named), "not_lost")
        assert (error["exit"], error["state"]) == (3, "suspended") and said in error["message"], error
        assert states(machine) == {first: "lost", second: "suspended"}
    comes_back_without(machine, first)
    others_are_whole(job, 2, 0)


def test_the_last_one_is_not_given_up(machine: Machine) -> None:
    machine.told("llm", "handles 2 1")
    pid = machine.target("llm")
    machine.leave()
    driver_does(machine, EACH_TIME.format(pid))
    assert "without" not in refused(machine.ask("restore", "llm", timeout=2.0), "driver_error")["hint"]
    error = refused(machine.ask("restore", "llm", without=[pid]), "not_lost")
    assert "no other process" in error["message"]
    driver_does(machine)
    machine.come_back()


def test_a_job_with_one_process_is_lost_as_before(machine: Machine) -> None:
    machine.told("llm", "handles 2 1")
    machine.leave()
    driver_does(machine, FOR_GOOD.format(machine.target("llm")))
    assert refused(machine.ask("restore", "llm"), "lost")["state"] == "lost"
    assert machine.job("llm")["state"] == "lost"  # type: ignore[index]


@pytest.mark.parametrize("program", [True, slowly(False)], ids=["the program", "its child"])
def test_processes_that_share_nothing_and_the_code_of_the_program(machine: Machine, program: bool) -> None:
    child = " ".join(machine.allocating("--seconds", "600"))
    job = machine.run("llm", "sh", "-c", f"{child} >/dev/null & exec {sys.executable} {VICTIMS / machine.where.told}")
    assert job.ask("handles 2 1") == "ok"
    first, second = machine.targets("llm", 2)
    main = first if b"told" in Path(f"/proc/{first}/cmdline").read_bytes() else second
    lost = main if program else first + second - main
    error = loses(machine, lost)
    assert error["hint"].startswith(f"gcr restore llm --without {lost} ")
    comes_back_without(machine, lost)
    if program:
        assert job.supervisor.wait(20) == 128 + signal.SIGKILL
        assert states(machine) == {first + second - main: "running"}
    else:
        assert job.ask("handles 2 1") == "ok"
        assert states(machine) == {main: "running"}


def test_no_checkpoint_is_made_of_a_job_with_a_lost_process(machine: Machine) -> None:
    job = ring(machine)
    lost = pids(job)[0]
    loses(machine, lost)
    assert machine.ask("checkpoint", "llm").code == 3
    store = str(machine.folder / "store")
    assert machine.gcr("checkpoint", "llm", "--image", "late", "--stop", "--store", store).code == 3
    assert states(machine)[lost] == "lost"
    comes_back_without(machine, lost)
    others_are_whole(job, 3, 0)


# ---- deaths --------------------------------------------------------------------------------------------------------


def test_a_daemon_that_dies_leaves_the_others_suspended_and_the_lost_one_lost(machine: Machine) -> None:
    job = ring(machine)
    lost = pids(job)[0]
    loses(machine, lost)
    kill(*machine.children("gcr.daemon"))
    assert machine.settled() == "suspended"
    until(lambda: states(machine)[lost] == "lost" or None, 20, "the driver is asked anew")
    refused(machine.ask("restore", "llm"), "process_lost")
    comes_back_without(machine, lost)
    others_are_whole(job, 3, 0)


@pytest.mark.parametrize("how", [FOR_GOOD, slowly(EACH_TIME)], ids=["for good", "each time"])
@pytest.mark.parametrize("step", ["given_up", "room", slowly("back"), "mapped"])
def test_a_daemon_dies_while_they_come_back(machine: Machine, step: str, how: str) -> None:
    """From the record on the process never comes back; the others can."""
    job = ring(machine)
    lost = pids(job)[0]
    loses(machine, lost, how=how)
    with machine.held_at(f"restore.{step}"):
        running = machine.asking.submit(machine.ask, "restore", "llm", without=[lost])
        machine.wait_held()
        driver_does(machine)
        kill(*machine.children("gcr.daemon"))
    running.result(timeout=60)
    assert machine.settled() == "suspended"
    assert lost not in states(machine)
    back = machine.gcr("restore", "llm", *(("--without", str(lost)) if step == "room" else ()))
    assert back.code == 0, back.body
    others_are_whole(job, 3, 0)
    ends_clean(machine, job)


@SLOW
@pytest.mark.parametrize("who", ["gcr.worker", "gcr.control_helper", "supervisor"])
def test_another_process_of_gcrs_dies_while_they_come_back(machine: Machine, who: str) -> None:
    job = ring(machine)
    lost = pids(job)[0]
    loses(machine, lost)
    with machine.held_at("restore.room"):
        running = machine.asking.submit(machine.ask, "restore", "llm", without=[lost])
        machine.wait_held()
        kill(*([job.supervisor.pid] if who == "supervisor" else machine.children(who)))
    running.result(timeout=60)
    if machine.settled() == "suspended":
        machine.come_back()
    others_are_whole(job, 3, 0)


def test_a_restore_without_one_that_fails_is_done_again(machine: Machine) -> None:
    job = ring(machine)
    lost = pids(job)[0]
    loses(machine, lost)
    machine.inject("restore.mapped fail")
    assert machine.ask("restore", "llm", without=[lost]).code == 4
    assert machine.settled() == "suspended"
    machine.come_back()
    others_are_whole(job, 3, 0)
