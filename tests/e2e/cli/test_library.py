"""The library and `gcr run` with everything real but the device."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gcr as library
from gcr import native, processes
from gcr.client import Client
from gcr.demo.cycle import PROGRAM
from gcr.errors import (
    DaemonUnavailable,
    DeadlinePassed,
    NameTaken,
    NoSuchJob,
    Refused,
    UsageError,
    WrongDevice,
    WrongState,
)

from .conftest import DEADLINE, Gcr, gcr_command

WORK = [sys.executable, str(PROGRAM), "nvidia", "work"]
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
    pipe = home / "stdin"  # the program works for as long as somebody has it open
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
        assert by_pid.wait(DEADLINE) is None
        assert processes.identify(job.pid) is None
    with pytest.raises(NoSuchJob):
        library.attach("sleeper")


def test_the_exit_code_is_the_programs() -> None:
    assert library.run(["sh", "-c", "sleep 0.5; exit 9"], name="nine").wait(DEADLINE) == 9


def test_a_program_that_ends_at_once() -> None:
    assert library.run(["true"], name="quick").wait(DEADLINE) == 0


def test_what_cannot_be_started(gcr: Gcr) -> None:
    with pytest.raises(Refused):
        library.run(["/nowhere/to/be/found"], name="nobody")
    with pytest.raises(UsageError):
        library.run(["true"], name="Upper")
    assert gcr("run", "--", "/nowhere/to/be/found").code == 125


def test_a_name_is_taken_once() -> None:
    with library.run(SLEEP, name="one"), pytest.raises((Refused, NameTaken)):
        library.run(SLEEP, name="one")


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
