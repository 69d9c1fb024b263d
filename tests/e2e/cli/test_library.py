"""The library and `gcr run` with everything real but the device."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aftermath import logs_below, processes_of

import gcr as library
from gcr import native, processes
from gcr.demo.cycle import PROGRAM
from gcr.errors import (
    CannotStart,
    DaemonUnavailable,
    DeadlinePassed,
    EndUnknown,
    NameTaken,
    NoSuchJob,
    UsageError,
    WrongDevice,
    WrongState,
)
from gcr.protocol.operations.daemon import LastFacts
from gcr.rendezvous.client import Client
from gcr.supervisor.process import _unreported

from .conftest import DEADLINE, Gcr, gcr_command

WORK = [sys.executable, str(PROGRAM), "nvidia", "work"]
STEPS = 60
LONGEST = 90.0  # seconds of the documents' program, which takes 5 where nothing runs beside it
HELD = 96 << 20  # bytes of device memory
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A simulated machine and a daemon of this test's own."""
    try:
        native.shim_path()
    except native.NativeMissing as missing:
        pytest.skip(missing.message)
    monkeypatch.setenv("GCR_SIM_STATE", str(home / "machine"))
    monkeypatch.setenv("GCR_SIM_DEVICES", "1")
    monkeypatch.setenv("GCR_SIM_MEMORY", str(4 << 30))
    yield
    try:
        with Client.connect(autostart=False) as client:
            client.request("stop", {"force": True})
            assert client.wait_closed(DEADLINE)
    except DaemonUnavailable:
        pass


def wait_for_memory(job: library.Job, least: int) -> None:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        with Client.connect() as client:
            rows = [row for each in client.request("ps")["jobs"] for row in each["processes"]]
        if any(row["pid"] == job.pid and row["bytes"] >= least for row in rows):
            return
        time.sleep(0.05)
    raise AssertionError("the program allocated nothing")


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": float("nan")},
        {"timeout": 0.0},
        {"timeout": "5"},
        {"timeout": float("inf")},
        {"image": ""},
        {"image": "No"},
        {"image": "warm", "wait": "bogus"},
        {"wait": "durable"},
        {"image": "warm", "max_bytes_per_s": 0},
        {"image": "warm", "max_bytes_per_s": float("nan")},
        {"image": "warm", "max_bytes_per_s": "5M"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(wrong: dict[str, object]) -> None:
    """There is no such job, and no daemon."""
    with pytest.raises(UsageError):
        library.Job("llm", None).checkpoint(**wrong)  # type: ignore[arg-type]


def test_run_checkpoint_restore_and_the_program_never_knew(capfd: pytest.CaptureFixture[str], home: Path) -> None:
    pipe = home / "stdin"  # the program works for as long as the test has it open
    os.mkfifo(pipe)
    line = shlex.join(["exec", *WORK]) + f" < {shlex.quote(str(pipe))}"
    with library.run(["sh", "-c", line], name="llm", simulate="nvidia") as job, pipe.open("w") as stdin:
        wait_for_memory(job, HELD)
        report = job.checkpoint(timeout=60)
        assert (report.job, report.state, report.vram_after_bytes) == ("llm", "suspended", 0)
        assert report.bytes == sum(one.covered_bytes for one in report.processes) == HELD
        with pytest.raises(WrongState):
            job.checkpoint()
        with pytest.raises(WrongDevice):
            job.restore(devices={0: "GPU-00000000-0000-0000-0000-000000000000"})
        back = job.restore(timeout=60, devices={0: 0})
        assert (back.state, back.bytes) == ("running", report.bytes)
        assert dict(back.moved) == {}
        stdin.close()
        assert job.wait(DEADLINE) == 0
    printed = capfd.readouterr().out.splitlines()
    steps = sum(said.startswith("step ") for said in printed)
    bare = subprocess.run(
        [*WORK, str(steps)],
        env={**os.environ, "LD_LIBRARY_PATH": str(native.sim_dir("nvidia"))},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert printed == bare.stdout.splitlines()


def test_attach_finds_a_job_by_name_and_by_pid() -> None:
    with library.run(SLEEP, name="sleeper", simulate="nvidia") as job:
        assert library.attach("sleeper").pid == job.pid
        by_pid = library.attach(job.pid)
        assert by_pid.name == "sleeper"
        with pytest.raises(DeadlinePassed):
            by_pid.wait(0.2)
        with pytest.raises(DeadlinePassed):
            job.wait(0.2)
        job.close()
        assert by_pid.wait(DEADLINE) == 128 + signal.SIGTERM
        assert processes.identify(job.pid) is None
    with pytest.raises(NoSuchJob):
        library.attach("sleeper")


def test_the_exit_code_is_the_programs() -> None:
    assert library.run(["sh", "-c", "sleep 0.5; exit 9"], name="nine").wait(DEADLINE) == 9


def test_a_program_that_ends_at_once() -> None:
    assert library.run(["true"], name="quick").wait(DEADLINE) == 0


def test_what_cannot_be_started_is_raised_and_not_printed(gcr: Gcr, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotStart):
        library.run(["/nowhere/to/be/found"], name="nobody")
    with pytest.raises(UsageError, match="no simulated intel"):
        library.run(["true"], simulate="intel")
    with library.run(SLEEP, name="one"), pytest.raises(NameTaken):
        library.run(SLEEP, name="one")
    assert tuple(capfd.readouterr()) == ("", "")
    assert gcr("run", "--", "/nowhere/to/be/found").code == 125


def test_environment_folder_and_output_are_the_programs(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = "echo $GREETING $HOME; pwd; ls -l /proc/self/fd | grep -c socket; echo wrong >&2; exit 3"
    given = {"GREETING": "hello", "PATH": os.environ["PATH"]}
    with library.run(["sh", "-c", line], env=given, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout and job.stderr
        assert job.stdout.read().decode().split() == ["hello", str(home), "0"]
        assert job.stderr.read() == b"wrong\n"
        assert job.wait(DEADLINE) == 3
    assert tuple(capfd.readouterr()) == ("", "")


def test_jobs_and_images_are_listed_without_a_daemon_or_a_store(home: Path) -> None:
    assert (library.jobs(), library.images(store=home / "none")) == ((), ())
    with pytest.raises(UsageError):
        library.images(store="s3://bucket")
    with library.run(SLEEP, name="one") as job:
        (found,) = library.jobs()
        assert (found.job, found.pid, found.state, found.command) == ("one", job.pid, "running", tuple(SLEEP))


def test_how_a_process_ended_that_gcr_did_not_start_is_not_known() -> None:
    with subprocess.Popen(["sleep", "0.3"]) as other, pytest.raises(EndUnknown):
        library.Job(other.pid, other.pid).wait(DEADLINE)


def test_the_program_of_the_documents_runs(home: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/library.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    env = {**os.environ, "XDG_DATA_HOME": str(home / "data")}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            said, complaints = running.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            sys.stderr.write(logs_below(home) + processes_of(home))
            raise
        finally:
            running.kill()
    assert (running.returncode, complaints) == (0, "")
    first, *rest = said.splitlines()
    assert re.fullmatch(rf"Job\('llm', pid=\d+\): {HELD} bytes off the device, stopped for [0-9.]+ s", first)
    assert rest[0] == "llm is suspended"
    assert rest[1].startswith(f"image warm: {HELD} bytes, ")
    assert rest[2:] == ["exit code 0"]


def test_run_detached_returns_at_once_and_the_job_goes_on(gcr: Gcr) -> None:
    began = time.monotonic()
    document = gcr("run", "--json", "-d", "--name", "far", "--", *SLEEP).json
    assert time.monotonic() - began < 20
    assert (document["job"], document["detached"], document["exit_code"]) == ("far", True, None)
    assert gcr("ps", "--json").json["jobs"][0]["job"] == "far"
    job = library.attach("far")
    os.kill(job.pid, 15)
    job.wait(DEADLINE)


def test_run_passes_signals_and_codes_on() -> None:
    with subprocess.Popen(gcr_command(["run", "--", "sh", "-c", "kill -TERM $$"])) as child:
        assert child.wait(DEADLINE) == 128 + 15


def test_a_report_that_is_not_written_is_told_and_the_code_stays_the_programs(gcr: Gcr, home: Path) -> None:
    ran = gcr("run", "--report", str(home / "report"), "--", "sh", "-c", "exit 7")
    assert (ran.code, ran.out) == (7, "")
    assert ran.err == f"gcr: no report in {home / 'report'}: the job was neither checkpointed nor restored\n"
    assert _unreported("/nowhere/report", LastFacts({"job": "llm"})) == "No such file or directory"
    assert _unreported("/nowhere/report", None) == "the daemon did not answer"
    assert _unreported(str(home / "report"), LastFacts({"job": "llm"})) == ""


@pytest.mark.usefixtures("criu")
def test_a_job_that_is_stopped_goes_on_with_the_next_step(home: Path, gcr: Gcr) -> None:
    """Its output was a pipe of its former parent's, and goes to its log now.

    The program leads a session: that of the test may have begun outside of its pid namespace.
    """
    store = home / "store"
    with library.run(["setsid", *WORK, str(STEPS)], name="llm", simulate="nvidia", stdout=subprocess.PIPE) as job:
        assert job.stdout
        said = [job.stdout.readline() for _ in range(3)]
        report = job.checkpoint(image="night", stop=True, store=store)
        assert (report.state, report.cut) == ("stopped", "process")
        assert job.wait(DEADLINE) == 128 + signal.SIGKILL
        said += job.stdout.readlines()
    again = library.restore("night", store=store)
    assert (again.name, again.pid) == ("llm", job.pid)
    assert again.wait(DEADLINE) == 0
    said += gcr("logs", "llm").out.encode().splitlines(keepends=True)
    assert [line.split()[0] for line in said] == [b"step"] * STEPS + [b"digest"]
    assert [int(line.split()[1]) for line in said[:-1]] == [*range(STEPS)]
