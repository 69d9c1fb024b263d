"""`gcr ps` and `gcr top`: their lines, their JSON, and `--watch`."""

import signal
import subprocess
import sys

import pytest

from gcr.runtime import runtime_dir
from gcr.testing.machine import until

from .conftest import DEADLINE, Gcr, buffered
from .fake_daemon import CHECKPOINT, JOBS, PID, FakeDaemon, answering

USUAL = "pool 500 B, holds 256 B of 4712, 512 B held by 4713"  # notes on the process


def test_ps_shows_a_line_a_process(gcr: Gcr, daemon: FakeDaemon) -> None:
    lines = gcr("ps").out.splitlines()
    assert lines[0].split() == ["JOB", "PID", "STATE", "DEVICE", "MEMORY", "COVERED", "AGE", "NOTES", "COMMAND"]
    assert lines[1].split()[:4] == ["llm", "4711", "running", "GPU-00000000-0000-0000-0000-000000000001"]
    assert "  1000 B  50 %     " in lines[1]
    assert lines[1].endswith(f"d  {USUAL}  python serve.py")
    assert gcr("ps", "llm", "4711").out.splitlines() == lines
    assert gcr("ps", "--json").json["jobs"] == JOBS
    assert gcr("ps", "--json", "--backend", "nvidia").json["jobs"] == JOBS
    assert gcr("ps", "--json", "--backend", "amd").json["jobs"] == []


def test_ps_names_the_job_that_was_meant_and_asks_all_or_none(gcr: Gcr, daemon: FakeDaemon) -> None:
    ran = gcr("--json", "ps", "llm", "ll")
    assert (ran.code, ran.json["error"]["code"]) == (3, "no_such_job")
    assert ran.json["error"]["message"] == "no job 'll'; did you mean llm?"
    assert gcr("ps", "elsewhere").err.splitlines()[1:] == ["  no job 'elsewhere'", "  try: gcr ps --all"]


def test_top_shows_devices_totals_and_jobs_once_where_it_is_piped(gcr: Gcr, daemon: FakeDaemon) -> None:
    device = {"backend": "nvidia", "index": 0, "uuid": JOBS[0]["processes"][0]["device"], "name": "SIMULATED H200"}
    row = {**device, "total_bytes": 4 << 30, "used_bytes": 1 << 30, "simulated": True}
    daemon.answers["devices"] = answering({"devices": [row]})
    above, below = gcr("top").out.split("\n\n")
    assert above.splitlines()[1].split() == [
        *("nvidia:0", "SIMULATED", "H200", "1.0", "GiB", "4.0", "GiB", "25", "%", "1000", "B", "SIMULATED")
    ]
    assert [line.split() for line in below.splitlines()] == [
        [*("JOB", "STATE", "PROCESSES", "MEMORY", "AGE", "LAST", "SWAP", "TOOK", "MOVED", "RATE", "COMMAND")],
        ["llm", "running", "1", "1000", "B", below.split()[-7], "-", "-", "-", "-", "python", "serve.py"],
    ]
    found = gcr("--json", "top").json
    assert (found["devices"][0]["jobs_bytes"], found["jobs"]) == (1000, [{**JOBS[0], "last_swap": None}])
    assert gcr("--json", "top", "--backend", "amd").json["jobs"] == []


def test_top_without_a_daemon_starts_none(gcr: Gcr) -> None:
    assert gcr("top", "--once").out.splitlines()[-1] == "no jobs"
    assert not list(runtime_dir().iterdir())


def test_ps_says_what_is_simulated(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert "SIMULATED" not in gcr("ps").out
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "simulated": True}]})
    assert gcr("ps").out.splitlines()[1].endswith(f"SIMULATED, {USUAL}  python serve.py")


@pytest.mark.parametrize("ready, note", [(0, "arena 0 %, "), (400, "arena 40 %, "), (1000, "")])
def test_ps_says_how_far_a_job_is_from_a_warm_checkpoint(gcr: Gcr, daemon: FakeDaemon, ready: int, note: str) -> None:
    arena = {"wanted_bytes": 1000, "ready_bytes": ready}
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "arena": arena}]})
    assert gcr("ps").out.splitlines()[1].endswith(f"d  {note}{USUAL}  python serve.py")
    assert gcr("--json", "ps").json["jobs"][0]["arena"] == arena


def test_ps_and_checkpoint_name_the_copier(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert "copied by its own agent" not in gcr("checkpoint", "llm").out
    row = {**JOBS[0]["processes"][0], "strategy": "copyout"}
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "processes": [row]}]})
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "strategy": "copyout"})
    assert gcr("ps").out.splitlines()[1].endswith(f"copyout, {USUAL}  python serve.py")
    assert "copied by its own agent. Back with: gcr restore llm" in gcr("checkpoint", "llm").out


def test_ps_without_a_daemon_starts_none(gcr: Gcr) -> None:
    assert gcr("ps").out == "no jobs\n"
    assert gcr("--json", "ps").json["jobs"] == []
    assert not list(runtime_dir().iterdir())


def test_ps_watch_has_no_json(gcr: Gcr, daemon: FakeDaemon) -> None:
    ran = gcr("ps", "--watch", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")
    assert daemon.asked == []


def test_ps_watch_goes_on_until_interrupted(daemon: FakeDaemon) -> None:
    command = [sys.executable, "-m", "gcr", "ps", "--watch"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(daemon.asked) >= 2 or None, DEADLINE, "it asks again")
        watching.send_signal(signal.SIGINT)
        said, _ = watching.communicate(timeout=DEADLINE)
    finally:
        watching.kill()
    assert "llm" in said


def test_ps_watch_says_to_a_pipe_what_it_sees_and_ends_with_its_reader(daemon: FakeDaemon) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gcr ps --watch | head -n {2 * len(JOBS) + 3}; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=buffered(),
        text=True,
        timeout=DEADLINE,
    )
    said = done.stdout.splitlines()
    assert [line.split()[0] for line in said].count("JOB") >= 2
    assert (said[-1], done.stderr) == ("0", "")


def test_ps_does_not_say_none_while_processes_have_not_come_back(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["ps"] = answering({"jobs": [], "awaited": [PID]})
    ran = gcr("ps", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "not_all_known")
    assert str(PID) in ran.json["error"]["message"] and f"kill -CONT {PID}" in ran.json["error"]["hint"]
    daemon.answers["ps"] = answering({"jobs": JOBS, "awaited": [PID]})
    ran = gcr("ps")
    assert ran.code == 0 and "llm" in ran.out and str(PID) in ran.err
