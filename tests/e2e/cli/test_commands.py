"""The other subcommands, bad input, speed, and what is imported."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gcr.cli.main import SUBCOMMANDS, main
from gcr.errors import NoSuchJob
from gcr.rendezvous import former
from gcr.runtime import log_dir, runtime_dir
from gcr.testing.machine import until
from gcr.version import __version__

from .conftest import DEADLINE, Gcr, gcr_command
from .fake_daemon import CHECKPOINT, JOBS, PID, FakeDaemon, answering, raising

WORKER = {"device": JOBS[0]["processes"][0]["device"], "pid": 7, "bytes": 5, "pinned_bytes": 5, "cold_s": 0.5}
STATUS = {
    "pid": PID,
    "version": __version__,
    "arena_bytes": 2 << 30,
    "arena_pinned_bytes": 1 << 30,
    "jobs": 1,
    "workers": [WORKER],
}
BAD_LINES = [
    (),
    ("nonsense",),
    ("checkpoint",),
    ("checkpoint", "Upper"),
    ("checkpoint", "-1"),
    ("checkpoint", "0"),
    ("checkpoint", "007"),
    ("checkpoint", "a" * 64),
    ("checkpoint", "llm", "--live"),
    ("checkpoint", "llm", "--image", "Warm"),
    ("checkpoint", "llm", "--image", "warm", "--leave-running", "--data-only"),
    ("restore",),
    ("restore", "llm", "--image", "warm"),
    ("checkpoint", "llm", "--timeout", "0"),
    ("checkpoint", "llm", "--timeout", "soon"),
    ("restore", "llm", "--image", "warm", "more"),
    ("run", "--name", "4711", "--", "true"),
    ("run", "--simulate", "intel", "--", "true"),
    ("run",),
    ("completion", "tcsh"),
    ("--backend", "No", "devices"),
]


@pytest.mark.parametrize("line", BAD_LINES, ids=" ".join)
def test_a_line_that_does_not_parse_is_exit_2(gcr: Gcr, daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    ran = gcr(*line)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    as_json = gcr("--json", *line)
    assert as_json.code == 2
    assert as_json.json["error"]["code"] == "usage"
    assert daemon.asked == []


@pytest.mark.parametrize("name", ["a", "a" * 63, "llm-2.b_c"])
def test_names(gcr: Gcr, daemon: FakeDaemon, name: str) -> None:
    assert gcr("checkpoint", name).code == 0
    assert daemon.asked[0]["target"] == name


def test_ps_shows_a_line_a_process(gcr: Gcr, daemon: FakeDaemon) -> None:
    lines = gcr("ps").out.splitlines()
    assert lines[0].split() == ["JOB", "PID", "STATE", "DEVICE", "MEMORY", "COVERED", "AGE", "NOTES", "COMMAND"]
    assert lines[1].split()[:4] == ["llm", "4711", "running", "GPU-00000000-0000-0000-0000-000000000001"]
    assert "  1000 B  50 %     " in lines[1]
    assert lines[1].endswith("d  pool 500 B  python serve.py")
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
    assert below == gcr("ps").out
    found = gcr("--json", "top").json
    assert (found["devices"][0]["jobs_bytes"], found["jobs"]) == (1000, JOBS)
    assert gcr("--json", "top", "--backend", "amd").json["jobs"] == []


def test_top_without_a_daemon_starts_none(gcr: Gcr) -> None:
    assert gcr("top", "--once").out.splitlines()[-1] == "no jobs"
    assert not list(runtime_dir().iterdir())


def test_ps_says_what_is_simulated(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert "SIMULATED" not in gcr("ps").out
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "simulated": True}]})
    assert gcr("ps").out.splitlines()[1].endswith("SIMULATED, pool 500 B  python serve.py")


@pytest.mark.parametrize("ready, note", [(0, "arena 0 %, "), (400, "arena 40 %, "), (1000, "")])
def test_ps_says_how_far_a_job_is_from_a_warm_checkpoint(gcr: Gcr, daemon: FakeDaemon, ready: int, note: str) -> None:
    arena = {"wanted_bytes": 1000, "ready_bytes": ready}
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "arena": arena}]})
    assert gcr("ps").out.splitlines()[1].endswith(f"d  {note}pool 500 B  python serve.py")
    assert gcr("--json", "ps").json["jobs"][0]["arena"] == arena


def test_ps_and_checkpoint_name_the_copier(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert "copied by its own agent" not in gcr("checkpoint", "llm").out
    row = {**JOBS[0]["processes"][0], "strategy": "copyout"}
    daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "processes": [row]}]})
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "strategy": "copyout"})
    assert gcr("ps").out.splitlines()[1].endswith("copyout, pool 500 B  python serve.py")
    assert "copied by its own agent. Back with: gcr restore llm" in gcr("checkpoint", "llm").out


@pytest.mark.parametrize("asked", ["amd", "ascend"])
def test_without_a_device_it_is_said_where_simulated_ones_are_seen(gcr: Gcr, asked: str) -> None:
    ran = gcr("--backend", asked, "-v", "devices")
    assert ran.err == ""
    assert ran.out.splitlines()[0] == "no devices; gcr doctor says why"
    assert f"gcr run --simulate {asked} -- gcr devices" in ran.out


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


def test_recover(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert gcr("recover").out.splitlines()[1].split() == ["llm", "frozen", "running", "rolled", "back"]
    assert gcr("recover", "--json").json["jobs"][0]["action"] == "rolled back"


def test_daemon_status_and_stop_without_one(gcr: Gcr) -> None:
    assert gcr("daemon", "status").out == "no daemon runs\n"
    assert gcr("daemon", "status", "--json").json["running"] is False
    assert gcr("daemon", "stop", "--json").json == {
        "schema": 1,
        "command": "daemon stop",
        "ok": True,
        "stopped": False,
        "pid": None,
    }


def test_daemon_status(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["status"] = answering(STATUS)
    assert gcr("daemon", "status", "--json").json["workers"] == [WORKER]
    assert "1.0 GiB of 2.0 GiB registered" in gcr("daemon", "status").out


def test_daemon_stop_waits_until_it_is_gone(gcr: Gcr, daemon: FakeDaemon) -> None:
    def stop(_body: object, request: object) -> dict[str, object]:
        request.reply_json({})  # type: ignore[attr-defined]
        time.sleep(0.3)
        request.channel.close()  # type: ignore[attr-defined]
        return {}

    daemon.answers["stop"] = stop
    began = time.monotonic()
    assert gcr("daemon", "stop", "--force", "--json").json["stopped"] is True
    assert time.monotonic() - began >= 0.3
    assert daemon.asked[0]["force"] is True


def test_daemon_start_when_it_runs(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert gcr("daemon", "start", "--json").json["started"] is False
    assert f"pid {PID}" in gcr("daemon", "start").out


def test_daemon_logs(gcr: Gcr) -> None:
    (log_dir() / "gcrd.log").write_text("one\ntwo\nthree\n")
    assert gcr("daemon", "logs", "-n", "2", "--json").json["lines"] == ["two", "three"]
    assert gcr("daemon", "logs").out.splitlines()[1:] == ["one", "two", "three"]


def test_a_daemon_of_another_version_is_refused_but_can_be_stopped(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.version = "0.0.1"
    ran = gcr("checkpoint", "llm", "--json")  # this one does not know how to hand over
    assert (ran.code, ran.json["error"]["code"]) == (3, "wrong_version")
    assert "gcr daemon stop --force" in ran.json["error"]["hint"]
    assert [asked["op"] for asked in daemon.asked] == ["hand_over"]
    daemon.asked.clear()
    daemon.answers["stop"] = lambda _body, request: request.channel.close() or {}
    assert gcr("daemon", "stop").code in (0, 4)
    assert daemon.asked[0]["op"] == "stop"


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_runtime_directory_that_others_can_enter_is_refused(gcr: Gcr, mode: int) -> None:
    folder = runtime_dir()
    folder.chmod(mode)
    ran = gcr("checkpoint", "llm", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "unsafe_runtime")
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_verbose_names_the_daemon_and_the_time_of_each_phase(gcr: Gcr, daemon: FakeDaemon, home: Path) -> None:
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "phases_s": {"drained": 0.5, "prepared": 0.25}})
    quiet, told = gcr("checkpoint", "llm"), gcr("-v", "checkpoint", "llm")
    assert "gcr.rendezvous.client" not in quiet.err
    assert told.out == quiet.out
    assert f"gcr.rendezvous.client: gcrd {__version__}, pid {PID}, at " in told.err
    assert "gcr.rendezvous.client: checkpoint: answered after " in told.err
    assert "checkpoint: prepared at 0.250 s, drained at 0.500 s" in told.err
    assert "gcr.config: settings of " in gcr("images", "-vv", "--store", str(home / "store")).err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(gcr: Gcr, shell: str) -> None:
    script = gcr("completion", shell).out
    assert "_GCR_COMPLETE" in script
    assert gcr("completion", shell, "--json").json["script"] + "\n" == script


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gcr checkpoint ", "llm"),
        ("gcr checkpoint llm l", ""),
        ("gcr ps l", "llm"),
        ("gcr --json restore l", "llm"),
        ("gcr wait l", "llm"),
        ("gcr inspect w", "warm"),
        ("gcr restore --image ", "cold warm"),
        ("gcr rm warm ", "cold"),
    ],
)
def test_completion_knows_jobs_and_images(gcr: Gcr, daemon: FakeDaemon, home: Path, words: str, found: str) -> None:
    images = home / "store/images"
    images.mkdir(parents=True)
    for name in ("warm", "cold"):
        (images / f"{name}.json").touch()
    asked = {"_GCR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = gcr(**asked, GCR_STORE=str(home / "store"))
    assert (done.code, done.err) == (0, "")
    assert [line.split(",")[1] for line in done.out.split()] == found.split()


def test_completion_starts_no_daemon_and_says_nothing(gcr: Gcr) -> None:
    done = gcr(_GCR_COMPLETE="bash_complete", COMP_WORDS="gcr checkpoint ", COMP_CWORD="2", GCR_STORE="s3://no")
    assert (done.code, done.out.strip(), done.err) == (0, "", "")
    assert not (runtime_dir() / "gcrd.sock").exists()


def test_completion_knows_the_subcommands(gcr: Gcr) -> None:
    done = gcr(_GCR_COMPLETE="bash_complete", COMP_WORDS="gcr che", COMP_CWORD="1")
    assert "checkpoint" in done.out


def test_every_subcommand_has_help_with_an_example(gcr: Gcr) -> None:
    for name in SUBCOMMANDS:
        text = gcr(name, "--help").out
        for word in ("Example:", f"gcr {name}", "--json", "--timeout", "--backend", "--verbose"):
            assert word in text, f"{name} --help lacks {word}"


def test_a_bug_leaves_its_traceback_in_the_log_and_one_line_for_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(former, "left", lambda: {}["jobs"])
    log = log_dir() / "cli.log"
    assert main(["ps"]) == 1
    assert tuple(capsys.readouterr()) == ("", f"gcr: a bug in gcr: KeyError('jobs') (traceback in {log})\n")
    assert "Traceback" in log.read_text()
    assert main(["ps", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"


@pytest.mark.parametrize("answer", [{"surprise": 1}, {"jobs": 5}, {"jobs": [{**JOBS[0], "pid": "7"}]}])
def test_an_answer_of_another_shape_is_a_typed_error(gcr: Gcr, daemon: FakeDaemon, answer: dict[str, Any]) -> None:
    daemon.answers["ps"] = answering(answer)
    ran = gcr("ps")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("gcr: an answer that is no JobList: ")
    assert gcr("ps", "--json").json["error"]["code"] == "internal"


@pytest.mark.parametrize("command", ["ps", "ps --json"])
def test_a_reader_that_goes_away_is_no_bug(daemon: FakeDaemon, command: str) -> None:
    daemon.answers["ps"] = answering({"jobs": JOBS * 20000})
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gcr {command} | head -c 9; echo; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=buffered(),
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert not (log_dir() / "cli.log").exists()


def buffered() -> dict[str, str]:
    """An environment with the buffer that stdout has by default: what is in it may fail again at the very end."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


FULL = "the report could not be written: No space left on device (ENOSPC)"


def to_a_full_disk(*line: str) -> tuple[int, str]:
    """Exit code and stderr."""
    env = buffered()
    with Path("/dev/full").open("w") as full:
        command = gcr_command(line)
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "line",
    [("ps",), ("doctor",), ("devices",), ("daemon", "status"), ("completion", "bash")],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_report_that_cannot_be_written_is_one_line(daemon: FakeDaemon, line: tuple[str, ...], as_json: bool) -> None:
    daemon.answers["status"] = answering(STATUS)
    assert to_a_full_disk(*line, *(["--json"] if as_json else [])) == (1, f"gcr: {FULL}\n")


@pytest.mark.parametrize(
    "line",
    [("--help",), ("--version",), ("ps", "--help"), ("daemon", "--help"), ("daemon", "stop", "-h")],
    ids=" ".join,
)
def test_help_that_cannot_be_written_is_the_same_line(line: tuple[str, ...]) -> None:
    assert to_a_full_disk(*line) == (1, f"gcr: {FULL}\n")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("command", "state"), [("checkpoint", "suspended"), ("restore", "running")])
def test_nor_does_it_hide_where_the_job_stands(daemon: FakeDaemon, command: str, state: str, as_json: bool) -> None:
    line = (command, "llm", *(["--json"] if as_json else []))
    assert to_a_full_disk(*line) == (1, f"gcr: {FULL}; llm is {state}\n")
    assert not (log_dir() / "cli.log").exists()


def test_nor_does_it_hide_a_failure(daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = raising(NoSuchJob("no job llm"))
    code, told = to_a_full_disk("checkpoint", "llm", "--json")
    assert code == 3
    assert told.splitlines() == [f"gcr: {FULL}", "gcr: refused, nothing was touched", "  no job llm"]


_IMPORTED = """
import sys
from gcr.cli.main import main
main(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
"""
_VENDORS = ("cuda", "pynvml", "hip", "acl", "torch", "gcr_nvidia", "gcr_amd", "gcr_ascend")


@pytest.mark.parametrize(
    "line", [("--help",), ("ps",), ("ps", "--json"), ("checkpoint", "llm"), ("daemon", "status")], ids=" ".join
)
def test_neither_a_vendor_nor_rich_is_imported(daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    daemon.answers["status"] = answering(STATUS)
    done = subprocess.run([sys.executable, "-c", _IMPORTED, *line], capture_output=True, text=True, timeout=DEADLINE)
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert "gcr" in imported
    assert not imported & {"rich", *_VENDORS}


@pytest.mark.alone
@pytest.mark.parametrize("line", [("--help",), ("ps",)], ids=" ".join)
def test_help_and_ps_take_less_than_a_fifth_of_a_second(daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    def fastest(*words: str) -> float:
        def once() -> float:
            began = time.monotonic()
            subprocess.run([sys.executable, *words], capture_output=True, check=True, timeout=DEADLINE)
            return time.monotonic() - began

        return min(once() for _ in range(5))

    slowness = max(1, fastest("-c", "import click") / 0.05)  # of this machine, or of this moment
    assert fastest("-m", "gcr", *line) < 0.2 * slowness


def test_importing_the_library_is_silent_and_loads_no_part_of_it() -> None:
    script = "import sys, gcr; print(*[name for name in sys.modules if name.startswith('gcr')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE)
    assert (sorted(done.stdout.split()), done.stderr) == (["gcr", "gcr.version"], "")


def test_the_socket_of_a_stranger_is_refused(gcr: Gcr, home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a socket of another user")
    place = home / "open" / "gcrd.sock"
    place.parent.mkdir()
    # The kernel notes the caller of listen(), and names it to connecting clients.
    lines = (
        "import os, socket, sys, time",
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "s.bind(sys.argv[1])",
        "os.setuid(65534)",
        "s.listen()",
        "print(flush=True)",
        "time.sleep(30)",
    )
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines), str(place)], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            ran = gcr("checkpoint", "llm", "--json", GCR_SOCKET=str(place))
        finally:
            stranger.kill()
    assert (ran.code, ran.json["error"]["code"]) == (3, "unsafe_runtime")


EARLY = """
import sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "gcr.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
from gcr.cli.entry import program
program()
"""


def test_ctrl_c_before_there_is_a_command_is_one_too() -> None:
    """Its modules are still being loaded, which takes long on a busy machine."""
    done = subprocess.run([sys.executable, "-c", EARLY, "ps"], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ps_does_not_say_none_while_processes_have_not_come_back(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["ps"] = answering({"jobs": [], "awaited": [PID]})
    ran = gcr("ps", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "not_all_known")
    assert str(PID) in ran.json["error"]["message"] and f"kill -CONT {PID}" in ran.json["error"]["hint"]
    daemon.answers["ps"] = answering({"jobs": JOBS, "awaited": [PID]})
    ran = gcr("ps")
    assert ran.code == 0 and "llm" in ran.out and str(PID) in ran.err
