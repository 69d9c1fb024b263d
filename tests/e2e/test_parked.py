"""A checkpoint in place on AMD: the processes end, `gcr run` stays, and `gcr restore` makes them again under it."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filed import Filed
from machine import PATIENCE, Machine, Victim, alive, kill, stop, until
from parking import WORKER, park, places
from worlds import AMD, slowly

from gcr.native import sim_dir
from gcr.processes import descendants, parent_pid

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.parametrize("machine", [AMD], indirect=True, ids=lambda world: world.name),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="/dev/fuse is not there to stand for /dev/kfd"),
]

PLUGIN = "amdgpu_plugin.so"
COUNT = "import time; n = 0\nwhile True: n += 1; open('count', 'r+').write(f'{n:9}'); time.sleep(0.01)"
EMPTY = """
import sys
from hip import hip
stream = hip.hipStreamCreate()
print("ready", flush=True)
for line in sys.stdin:
    print(int(hip.hipMalloc(int(line))[0]), flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    """Removes the places of jobs that the end of the test leaves parked."""
    yield
    for place in places(machine):
        shutil.rmtree(place)


def test_a_job_leaves_in_place_and_comes_back_under_its_parent_as_it_was_time_and_again(
    machine: Machine, job: Filed
) -> None:
    before, addresses = job.ask(), job.ask("address")
    for _ in range(3):
        park(machine)
        row = machine.job("llm")
        assert row
        assert (row["state"], row["processes"]) == ("suspended", [])
        assert not alive(job.pid)
        assert machine.used() == WORKER
        assert machine.gcr("images").body["images"] == []
        machine.come_back()
        assert (job.ask(), job.ask("address")) == (before, addresses)
        row = machine.job("llm")
        assert row
        assert row["pid"] == job.pid
        assert places(machine) == []


def victim(machine: Machine) -> Victim:
    """A job in the foreground of its `gcr run`, with pipes of this test's as its streams."""
    return machine.told("llm", "mixed 6 1000 2000000")


def row_of(machine: Machine) -> dict[str, Any]:
    row = machine.job("llm")
    assert row
    return row


def over(machine: Machine) -> dict[str, Any]:
    """Returns the record of a job that is forgotten."""
    until(lambda: machine.job("llm") is None or None, PATIENCE, "the job is forgotten")
    (row,) = machine.gcr("ps", "--all").body["ended"]
    return dict(row)


def test_a_job_without_device_memory_leaves_its_device(machine: Machine) -> None:
    (machine.folder / "empty.py").write_text(EMPTY)
    job = machine.run("llm", sys.executable, str(machine.folder / "empty.py"))
    machine.targets("llm")
    for size in (4096, 4096):
        park(machine)
        assert machine.used() <= WORKER
        machine.come_back()
        assert job.ask(str(size)) == "0"


def test_children_leave_and_come_back_with_their_parent(machine: Machine) -> None:
    count = machine.folder / "count"
    count.write_text(f"{0:9}")
    (machine.folder / "count.py").write_text(COUNT)
    job = Filed(machine, first=f"{sys.executable} count.py &")
    before, pids = job.ask(), [job.pid, *descendants(job.pid)]
    park(machine)
    assert [pid for pid in pids if alive(pid)] == []
    at_the_end = int(count.read_text())
    machine.come_back()
    until(lambda: int(count.read_text()) > at_the_end or None, PATIENCE, "the child counts on")
    assert ([job.pid, *descendants(job.pid)], job.ask()) == (pids, before)
    job.close()


def test_two_jobs_take_turns_on_a_device(machine: Machine) -> None:
    first, second = machine.told("llm", "mixed 6 1000 2000000"), machine.told("second", "alloc 2 3000000")
    told = first.ask(), second.ask()
    assert machine.gcr("checkpoint", "second").body["state"] == "suspended"
    for out, back in (("llm", "second"), ("second", "llm")):
        done = machine.gcr("swap", out, back)
        assert done.code == 0, done.body
        assert (done.body["out"]["state"], done.body["in"]["state"]) == ("suspended", "running")
    machine.gcr("restore", "second")
    assert (first.ask(), second.ask()) == told


# ---- its parent ---------------------------------------------------------------------------------------------------


def test_a_program_that_came_back_ends_with_its_own_code(machine: Machine) -> None:
    job = victim(machine)
    before = job.ask()
    for _ in range(2):
        park(machine)
        machine.come_back()
        assert job.ask() == before
    job.ask(f"later 0 {b'import os; os._exit(7)'.hex()}h")
    assert job.supervisor.wait(PATIENCE) == 7
    assert over(machine)["exit_code"] == 7


def test_a_signal_reaches_a_program_that_came_back(machine: Machine) -> None:
    job = victim(machine)
    park(machine)
    machine.come_back()
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.supervisor.wait(PATIENCE) == 128 + signal.SIGTERM
    row = over(machine)
    assert (row["signal"], row["was"], places(machine)) == (signal.SIGTERM, "running", [])


@pytest.mark.parametrize("number", [signal.SIGTERM, slowly(signal.SIGINT), slowly(signal.SIGHUP)])
def test_a_signal_ends_a_parked_job(machine: Machine, number: signal.Signals) -> None:
    job = victim(machine)
    park(machine)
    job.supervisor.send_signal(number)
    assert job.supervisor.wait(PATIENCE) == 128 + number
    row = over(machine)
    assert (row["signal"], row["was"], places(machine)) == (number, "suspended", [])


def test_a_signal_that_programs_handle_waits_for_the_program(machine: Machine) -> None:
    job = victim(machine)
    park(machine)
    job.supervisor.send_signal(signal.SIGUSR1)
    assert row_of(machine)["state"] == "suspended"
    machine.gcr("restore", "llm")  # may find that the program has ended
    assert job.supervisor.wait(PATIENCE) == 128 + signal.SIGUSR1
    assert over(machine)["signal"] == signal.SIGUSR1
    until(lambda: not places(machine) or None, PATIENCE, "its place is given up")


def test_a_signal_that_comes_during_the_dump_is_not_lost(machine: Machine) -> None:
    job = victim(machine)
    with machine.held_at("checkpoint.dumped"):
        running = machine.asking.submit(machine.gcr, "checkpoint", "llm")
        machine.wait_held()
        job.supervisor.send_signal(signal.SIGTERM)
        until(lambda: bool(pending(row_of(machine)["pid"])) or None, PATIENCE, "the program has the signal")
    running.result(PATIENCE)
    assert job.supervisor.wait(PATIENCE) == 128 + signal.SIGTERM
    assert places(machine) == []


def pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))


def test_a_program_that_came_back_outlives_its_parent(machine: Machine, job: Filed) -> None:
    before, parent = job.ask(), parent_pid(job.pid)
    assert parent
    park(machine)
    machine.come_back()
    kill(parent)
    machine.gcr("daemon", "stop")  # the next one has the program from the job's record
    assert (machine.until_state("llm", "running"), job.ask()) == ("running", before)
    row = row_of(machine)
    assert (row["pid"], bool(row["command"])) == (job.pid, True)
    assert machine.gcr("ps", "--all").body["ended"] == []


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_a_parked_job_is_suspended_for_every_command(machine: Machine, job: Filed) -> None:
    before = job.ask()
    park(machine)
    for words, code in (
        (("checkpoint", "llm"), "wrong_state"),
        (("checkpoint", "llm", "--data-only"), "wrong_state"),
        (("daemon", "stop"), "wrong_state"),
        (("restore", "llm", "--device", "0=0"), "unsupported_state"),
        (("wait", "llm", "--timeout", "0.1"), "still_runs"),
    ):
        done = machine.gcr(*words)
        assert done.body["error"]["code"] == code, (words, done.body)
    machine.come_back()
    assert job.ask() == before


def test_a_job_without_its_parent_is_refused(machine: Machine, job: Filed) -> None:
    before, parent = job.ask(), parent_pid(job.pid)
    assert parent
    kill(parent)
    refused = machine.gcr("checkpoint", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "unsupported_state")
    assert "--stop" in refused.body["error"]["hint"]
    assert (machine.until_state("llm", "running"), job.ask()) == ("running", before)


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_fails_at_any_step_leaves_a_job_that_runs_on(machine: Machine, job: Filed) -> None:
    before = job.ask()
    for step in ("handed_over", "held", "left", "dumped", "published"):
        machine.inject(f"checkpoint.{step} fail")
        failed = machine.gcr("checkpoint", "llm")
        assert (failed.code, failed.body["error"]["code"]) == (4, "injected_fault"), step
        runs_on(machine, job, before, step)
    park(machine)
    machine.come_back()
    assert job.ask() == before


def test_a_helper_that_fails_or_dies_leaves_a_job_that_runs_on(machine: Machine, job: Filed) -> None:
    before = job.ask()
    for fault in ("image.commit fail", "image.commit die", "criu.saved die"):
        machine.inject(fault)
        assert machine.gcr("checkpoint", "llm").code == 4, fault
        runs_on(machine, job, before, fault)


def runs_on(machine: Machine, job: Filed, before: str, after: str) -> None:
    """Checks that the job runs, as it was, once a checkpoint has failed after this."""
    assert machine.until_state("llm", "running", "suspended", "data_suspended") == "running", after
    assert (job.ask(), places(machine)) == (before, []), after


def test_a_parent_that_is_stopped_does_not_end_the_program_later(machine: Machine, job: Filed) -> None:
    """The daemon gives up, and the job runs on. Only then does its parent read that it shall end the program."""
    before, parent = job.ask(), parent_pid(job.pid)
    assert parent
    with machine.held_at("checkpoint.published"):
        running = machine.asking.submit(machine.gcr, "checkpoint", "llm")
        machine.wait_held()
        stop(parent)
    failed = running.result(PATIENCE)
    os.kill(parent, signal.SIGCONT)
    assert (failed.code, failed.body["error"]["code"]) == (4, "deadline_passed")
    if machine.until_state("llm", "running", "data_suspended") != "running":
        machine.come_back()
    assert (job.ask(), places(machine)) == (before, [])
    park(machine)
    machine.come_back()
    assert job.ask() == before


def test_a_parent_that_is_stopped_as_it_brings_the_program_back_is_waited_for_no_longer(
    machine: Machine, job: Filed
) -> None:
    before, parent = job.ask(), parent_pid(job.pid)
    assert parent
    park(machine)
    idle = descendants(parent)
    restoring = machine.asking.submit(machine.gcr, "restore", "llm")
    until(lambda: set(descendants(parent)) - set(idle), PATIENCE, "the parent reads the image")
    stop(parent)
    failed = restoring.result(PATIENCE)
    assert (failed.code, failed.body["error"]["code"]) == (4, "deadline_passed"), failed.body
    assert failed.body["error"]["hint"].startswith(f"kill -CONT {parent}")
    os.kill(parent, signal.SIGCONT)
    until(lambda: machine.gcr("restore", "llm").code == 0 or None, PATIENCE, "the job is back")
    assert job.ask() == before


def test_a_restore_that_fails_leaves_the_job_parked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine.folder / "plugins"
    shutil.copytree(sim_dir("amd") / "criu", folder)
    monkeypatch.setenv("GCR_CRIU_PLUGINS", str(folder))
    job = victim(machine)
    before = job.ask()
    park(machine)
    (folder / PLUGIN).rename(folder / "away")
    for _ in range(2):
        failed = machine.gcr("restore", "llm")
        assert (failed.code, failed.body["error"]["code"]) == (3, "criu_unusable")
        assert failed.body["error"]["state"] == row_of(machine)["state"] == "suspended"
    (folder / "away").rename(folder / PLUGIN)
    machine.come_back()
    assert job.ask() == before


def test_a_device_that_fails_leaves_the_job_parked(machine: Machine, job: Filed) -> None:
    before = job.ask()
    park(machine)
    (machine.simulated / "faults").write_text(f"checkpoint.restore@{job.pid}:1:fail=1\n")
    failed = machine.gcr("restore", "llm")
    assert (failed.code, failed.body["error"]["code"]) == (4, "not_restored")
    assert (row_of(machine)["state"], alive(job.pid)) == ("suspended", False)
    (machine.simulated / "faults").unlink()
    machine.come_back()
    assert (job.ask(), places(machine)) == (before, [])


# ---- deaths ---------------------------------------------------------------------------------------------------------


def test_a_daemon_that_dies_finds_the_job_parked(machine: Machine) -> None:
    job = victim(machine)
    before = job.ask()
    park(machine)
    kill(machine.daemon())
    assert machine.settled() == "suspended"
    machine.come_back()
    assert (job.ask(), places(machine)) == (before, [])
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.supervisor.wait(PATIENCE) == 128 + signal.SIGTERM


def test_a_daemon_that_dies_at_any_step_of_the_checkpoint_leaves_a_suspended_job(machine: Machine, job: Filed) -> None:
    before = job.ask()
    for step in ("held", "left", "dumped", "published", "parked"):
        machine.inject(f"checkpoint.{step} die")
        machine.gcr("checkpoint", "llm")
        assert machine.settled() in ("suspended", "data_suspended"), step
        machine.come_back()
        assert job.ask() == before, step
    park(machine)
    machine.come_back()
    assert (job.ask(), places(machine)) == (before, [])


def test_a_job_whose_parent_was_killed_comes_back_as_the_hint_says(machine: Machine, job: Filed) -> None:
    before, parent = job.ask(), parent_pid(job.pid)
    assert parent
    park(machine)
    kill(parent)
    assert over(machine)["state"] == "exited"
    failed = machine.gcr("restore", "llm")
    assert failed.body["error"]["code"] == "no_such_job"
    program, *words = failed.body["error"]["hint"].split()
    assert (program, len(places(machine))) == ("gcr", 1)
    done = machine.gcr(*words)
    assert done.code == 0, done.body
    assert (job.ask(), row_of(machine)["pid"], places(machine)) == (before, job.pid, [])
    park(machine)
    machine.come_back()
    assert job.ask() == before
