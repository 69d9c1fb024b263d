"""Facts of a job that has ended, and its output, after any earlier death of gcr's processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import VICTIMS, Machine, alive, kill, until

from gcr.processes import descendants

COUNTS = """
import os, sys, time
for n in range(150):
    print(n, "x" * 40, flush=True)
    while n == 120 and os.fstat(1).st_size > 4096: time.sleep(0.01)
sys.exit(3)
"""

PRINTS = """
import sys, time
sys.path.insert(0, {victims!r})
from cuda_calls import primary_context
context = primary_context()
while True:
    print("x" * 100, flush=True)
    time.sleep(0.02)
"""


def ended(machine: Machine, job: str) -> dict[str, object]:
    return until(lambda: next(iter(machine.gcr("ps", "--all", job).body.get("ended", [])), None), 20, "it has ended")


def test_a_job_keeps_its_age_in_every_daemon_and_its_end_says_that_it_was_suspended(machine: Machine) -> None:
    job = machine.told("llm", "alloc 2 4194304")
    before = machine.job("llm")
    machine.leave()
    kill(machine.daemon())
    assert machine.settled() == "suspended"
    now = until(lambda: (job := machine.job("llm")) and job["pid"] and job, 20, "its supervisor is back")
    assert before and (now["started"], now["command"], now["pid"]) == (
        before["started"],
        before["command"],
        before["pid"],
    )
    kill(machine.target("llm"))
    job.supervisor.wait(20)
    found = ended(machine, "llm")
    assert {name: found[name] for name in ("how", "signal", "exit_code", "was", "state", "pid", "started")} == {
        "how": "signalled",
        "signal": 9,
        "exit_code": 137,
        "was": "suspended",
        "state": "exited",
        "pid": now["pid"],
        "started": before["started"],
    }
    told = machine.gcr("wait", "llm")
    assert (told.code, told.body["ok"], told.body["was"]) == (137, True, "suspended")


def test_an_end_that_only_the_daemon_saw_is_noted_and_one_that_nothing_saw_is_seen_later(machine: Machine) -> None:
    first, second = machine.told("llm", "alloc 2 4194304"), machine.told("two", "alloc 2 4194304")
    machine.leave()
    kill(first.supervisor.pid, machine.target("llm"))
    until(lambda: machine.job("llm") is None or None, 20, "the daemon has noted it")
    assert (ended(machine, "llm")["how"], ended(machine, "llm")["was"]) == ("unknown", "suspended")
    told = machine.gcr("wait", "llm")
    assert (told.code, told.body["error"]["code"]) == (3, "end_unknown")
    target = machine.target("two")
    kill(second.supervisor.pid, machine.daemon(), target)
    assert ended(machine, "two")["how"] == "unknown"


def test_a_detached_job_s_output_is_shown_while_it_grows_and_its_log_is_bounded(machine: Machine) -> None:
    machine.extra["GCR_JOB_LOG_BYTES"] = "4096"
    started = machine.gcr("run", "-d", "--name", "counts", *machine.world, "--", sys.executable, "-c", COUNTS).body
    log = Path(started["log"])
    follow = [sys.executable, "-m", "gcr", "logs", "counts", "-f"]
    shown = subprocess.run(follow, env=machine.env, capture_output=True, text=True, timeout=60, check=True)
    assert [int(line.split()[0]) for line in shown.stdout.splitlines()] == list(range(150))
    told = machine.gcr("wait", "counts")
    assert (told.code, told.body["exit_code"], told.body["how"]) == (3, 3, "exited")
    assert (told.body["command"], told.body["argv"]) == ("wait", [sys.executable, "-c", COUNTS])
    assert not alive(told.body["pid"])
    parts = [log, Path(f"{log}.1")]
    assert [oct(part.stat().st_mode & 0o777) for part in parts] == ["0o600", "0o600"]
    assert log.stat().st_size < 30 * 45
    lines = machine.gcr("logs", "counts", "-n", "2").body["lines"]
    assert [line.split()[0] for line in lines] == ["148", "149"]


def test_a_command_for_a_job_that_has_ended_says_how_it_ended(machine: Machine) -> None:
    assert machine.gcr("run", "--name", "llm", "--", "sh", "-c", "exit 3").code == 3
    for command in ("checkpoint", "restore"):
        told = machine.gcr(command, "llm")
        assert (told.code, told.body["error"]["code"], told.body["error"]["hint"]) == (3, "no_such_job", "gcr ps --all")
        assert "llm has ended" in told.body["error"]["message"] and "exit code 3" in told.body["error"]["message"]


def test_the_log_of_a_detached_job_is_bounded_after_its_supervisor_was_killed(machine: Machine) -> None:
    machine.extra["GCR_JOB_LOG_BYTES"] = "4096"
    words = [sys.executable, "-c", PRINTS.format(victims=str(VICTIMS))]
    started = machine.gcr("run", "-d", "--name", "llm", *machine.world, "--", *words).body
    machine.target("llm")
    (run,) = [run for run in runs_in(machine) if run["job"] == "llm"]
    kill(run["supervisor"])
    log = Path(started["log"])
    older = Path(f"{log}.1")
    older.unlink(missing_ok=True)
    until(lambda: older.exists() or None, 30, "the daemon has turned it")
    kill(machine.target("llm"))


def runs_in(machine: Machine) -> list[dict[str, Any]]:
    folder = Path(machine.env["XDG_STATE_HOME"]) / "gcr" / "jobs"
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def test_ctrl_c_while_a_detached_job_starts_leaves_no_job_behind(machine: Machine) -> None:
    machine.told("other")
    daemon, mark = machine.daemon(), machine.folder / "it ran"
    os.kill(daemon, signal.SIGSTOP)  # so the start takes long
    starting = machine.begin("run", "-d", "--name", "llm", *machine.world, "--", "touch", str(mark))
    until(lambda: descendants(starting.pid) or None, 20, "its other half is there")
    time.sleep(0.5)
    starting.send_signal(signal.SIGINT)
    time.sleep(0.2)
    os.kill(daemon, signal.SIGCONT)
    out, _ = starting.communicate(timeout=30)
    error = json.loads(out)["error"]
    assert (starting.returncode, error["message"]) == (130, "interrupted; the program was not started")
    until(lambda: machine.job("llm") is None or None, 10, "the job is gone")
    assert not mark.exists()


def test_a_checkpoint_of_an_ended_job_by_pid_says_how_it_ended(machine: Machine) -> None:
    job = machine.told("llm", "alloc 1 100000")
    pid = machine.job("llm")["pid"]  # type: ignore[index]
    machine.end(job)
    ended(machine, "llm")
    for command in ("checkpoint", "restore"):
        answer = machine.gcr(command, str(pid))
        error = answer.body["error"]
        assert (answer.code, error["code"], error["state"]) == (3, "no_such_job", "exited")
        assert error["hint"] == "gcr ps --all"
        assert error["message"].startswith("llm has ended "), error
