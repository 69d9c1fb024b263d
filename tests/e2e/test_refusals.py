"""Refusals of gcr: each typed, with its exit code, and the program exactly as before."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machine import Machine, bytes_short, until
from refusals import refused, untouched
from worlds import AMD, ASCEND, at, everywhere

from gcr import processes
from gcr.api.requests import CheckpointRequest
from gcr.config import load
from gcr.daemon.commands import checkpoint
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.engine.admit import refuse_unsupported
from gcr.errors import NotOurs, UnsupportedState
from gcr.job.journal import Journal
from gcr.job.tracking import ReportedAllocations
from gcr.memory.hostmemory import available_host_bytes
from gcr.native import sim_dir
from gcr.protocol.agentwire import StatusRecord, StatusReply
from gcr.protocol.wire import AgentPhase
from gcr.version import __version__

NOBODY = 65534
MIB = 1 << 20
NO_PROCESS = "4194301"  # beyond the kernel's largest pid
HAS, HAS_NOT = 1 << 30, 1 << 29  # pids of no process


# ---- users -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["checkpoint", "restore"])
@pytest.mark.parametrize("target", ["nobody", NO_PROCESS])
def test_no_such_job_or_pid(machine: Machine, command: str, target: str) -> None:
    refused(machine.gcr(command, target), "no_such_job")


@pytest.mark.parametrize("name", ["Llm", "1llm", "a/b", "a" * 64, "-x", ""])
def test_names_that_are_none(machine: Machine, name: str) -> None:
    answer = machine.gcr("run", f"--name={name}", "--simulate", "nvidia", "--", "true")
    assert (answer.code, answer.body["error"]["code"]) == (2, "usage")


def test_a_name_that_is_taken(machine: Machine) -> None:
    job = machine.told("llm")
    with untouched(machine, job):
        ran = machine.folder / "ran"
        answer = machine.gcr("run", "--name", "llm", "--simulate", "nvidia", "--", "touch", str(ran))
        assert (answer.code, answer.body["error"]["code"]) == (125, "name_taken")
        assert not ran.exists()


def test_not_a_gpu_process(machine: Machine) -> None:
    sleeper = machine.stranger(sys.executable, "-c", "print('ready', flush=True); input()")
    refused(machine.gcr("checkpoint", str(sleeper.supervisor.pid)), "not_a_gpu_process")
    assert sleeper.supervisor.poll() is None


def test_a_refused_stranger_is_no_job(machine: Machine) -> None:
    """Nor is it said to use what it does not."""
    sleeper = machine.begin_other("sleep", "60")
    answer = machine.gcr("--backend", "amd", "checkpoint", str(sleeper.pid))
    assert answer.code == 3, answer.body
    assert "nvidia" not in answer.body["error"]["message"]
    assert machine.gcr("ps").body["jobs"] == []
    sleeper.kill()
    sleeper.wait(10)


def test_a_job_that_uses_no_device(machine: Machine) -> None:
    job = machine.run("llm", sys.executable, "-c", "print('ready', flush=True); print(input(), flush=True)")
    refused(machine.gcr("checkpoint", "llm"), "not_a_gpu_process")
    assert job.ask("still here") == "still here"


def test_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own daemon may touch it, so the daemon under test takes itself for another user's."""
    theirs = subprocess.Popen(["/bin/sleep", "60"], cwd="/", user=NOBODY if os.getuid() == 0 else None)
    coordinator = Coordinator(load({}), Journal(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: NOBODY - 1)
    try:
        with pytest.raises(NotOurs) as caught:
            checkpoint.run(
                coordinator, CheckpointRequest(target=theirs.pid), Asked(lambda _report: None, threading.Event())
            )
        assert (caught.value.exit, theirs.poll()) == (3, None)
    finally:
        theirs.kill()
        theirs.wait(10)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_who_reaches_our_socket_is_not_served(machine: Machine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine.extra["GCR_SOCKET"] = f"{folder}/gcrd.sock"
        job = machine.told("llm")
        with untouched(machine, job):
            Path(folder).chmod(0o755)
            machine.socket.chmod(0o777)
            said = machine.bare(sys.executable, "-c", STRANGER, str(machine.socket), str(NOBODY))
            Path(folder).chmod(0o700)
        assert said == "not_ours\n"


STRANGER = """
import os, sys
from gcr.rendezvous.client import Client
from gcr.errors import GcrError
os.environ["GCR_SOCKET"] = sys.argv[1]
os.seteuid(int(sys.argv[2]))
try:
    Client.connect(autostart=False)
except GcrError as error:
    print(error.code)
"""


# ---- when --------------------------------------------------------------------------------------------------------


def test_suspended_already_and_not_suspended(machine: Machine) -> None:
    job = machine.told("llm")
    with untouched(machine, job):
        refused(machine.gcr("restore", "llm"), "wrong_state")
    before = job.ask()
    assert machine.gcr("checkpoint", "llm").code == 0
    answer = machine.gcr("checkpoint", "llm")
    assert "is suspended" in refused(answer, "wrong_state")
    assert answer.body["error"]["state"] == "suspended"
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_two_at_once(machine: Machine) -> None:
    job = machine.told("llm")
    before = job.ask()
    with machine.held_at("checkpoint.quiesced"):
        first = machine.begin("checkpoint", "llm")
        machine.wait_held()
        refused(machine.gcr("checkpoint", "llm"), "wrong_state")
        refused(machine.gcr("restore", "llm"), "wrong_state")
    first.communicate(timeout=30)
    assert first.returncode == 0
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_too_little_time_is_taken_back(machine: Machine) -> None:
    job = machine.told("llm")
    job.ask(f"persistent {sim_dir('nvidia') / 'kernels.so'}")
    began = time.monotonic()
    failed = machine.gcr("checkpoint", "llm", "--timeout", "0.5")
    assert failed.code == 4
    assert failed.body["error"]["code"] in ("stuck", "deadline_passed")
    assert time.monotonic() - began < 20
    job.ask("release")
    with untouched(machine, job):
        assert until(lambda: job.ask("done") == "done" or None, 10, "its stream ends")
    assert machine.gcr("checkpoint", "llm").code == 0
    refused(machine.gcr("restore", "llm", "--timeout", "0.000001"), "deadline_passed", 4)
    assert machine.job("llm")["state"] == "suspended"
    assert machine.gcr("restore", "llm").code == 0


@everywhere(slow=[AMD, ASCEND])  # the daemon looks, whichever the vendor
def test_a_stopped_program(machine: Machine) -> None:
    """It is stopped by SIGSTOP, or in a debugger: no command waits for it, on neither way."""
    job = machine.told("llm", "alloc 3 100000")
    before, pid = job.ask(), machine.target("llm")
    for command, options in (("checkpoint", machine.where.options), ("restore", ())):
        os.kill(pid, signal.SIGSTOP)
        until(lambda: processes.is_stopped(pid) or None, 30, "it is stopped")
        began = time.monotonic()
        assert f"process {pid} is stopped" in refused(machine.gcr(command, "llm", *options), "wrong_state")
        assert time.monotonic() - began < 20
        os.kill(pid, signal.SIGCONT)
        until(lambda: not processes.is_stopped(pid) or None, 30, "it goes on")
        assert machine.gcr(command, "llm", *options).code == 0
    assert job.ask() == before


# ---- what a driver would take and never give back ----------------------------------------------------------------


@pytest.mark.parametrize(("told", "says"), [("managed", "managed"), ("shareable", "exported device memory")])
def test_memory_that_is_not_the_programs_alone(machine: Machine, told: str, says: str) -> None:
    machine.extra["GCR_SHARE"] = "driver"
    job = machine.told("llm")
    job.ask(told)
    with untouched(machine, job):
        assert says in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")


def test_memory_lent_to_another_process(machine: Machine) -> None:
    """The driver lends its own memory, which a program gets if gcr has none."""
    job = machine.told("llm")
    (machine.simulated / "faults").write_text("cuMemCreate:1+:fail=2\n")
    assert len(job.ask(f"lend {4 * MIB}")) == 129
    (machine.simulated / "faults").unlink()
    with untouched(machine, job):
        assert "IPC export" in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")


@pytest.mark.parametrize(
    ("give", "take", "says"), [(f"lend {4 * MIB}", "borrow", "IPC import"), ("shareable", "import_from", "imported")]
)
def test_memory_of_another_process(machine: Machine, give: str, take: str, says: str) -> None:
    giver = machine.stranger()
    what = giver.ask(give)
    job = machine.told("llm")
    before = giver.ask()
    done = job.ask(f"{take} {what}" if take == "borrow" else f"{take} {giver.supervisor.pid} {what}")
    assert done == "ok" or done.startswith("0: True")
    with untouched(machine, job):
        assert says in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")
    assert giver.ask() == before


def test_a_driver_that_cannot_checkpoint(machine: Machine) -> None:
    machine.extra["GCR_SIM_DRIVER"] = "550.90.07"
    job = machine.told("llm")
    with untouched(machine, job):
        message = refused(machine.gcr("checkpoint", "llm"), "driver_too_old")
    assert "550.90.07" in message and "570" in message
    assert machine.gcr("checkpoint", "llm", "--data-only").code == 0
    refused(machine.gcr("checkpoint", "llm"), "driver_too_old")
    assert machine.job("llm")["state"] == "data_suspended"
    assert machine.gcr("restore", "llm").code == 0


def test_a_driver_without_multicast_says_so_to_the_program(machine: Machine) -> None:
    """Its own error passes through unchanged, and the program can still be swapped. With it: test_refused_kinds.py."""
    job = machine.told("llm")
    assert int(job.ask("multicast")) == 801
    assert machine.gcr("checkpoint", "llm").code == 0
    assert machine.gcr("restore", "llm").code == 0


@pytest.mark.parametrize("device", ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"])
def test_open_verbs(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """No RDMA device here, so what the kernel says is made up; that it is asked, and what follows, is not."""
    monkeypatch.setattr(processes, "_open_files", lambda pid: iter(["/dev/null", device]) if pid == HAS else iter([]))
    with pytest.raises(UnsupportedState, match=device) as caught:
        refuse_unsupported(idle(HAS))
    assert caught.value.exit == 3
    refuse_unsupported(idle(HAS_NOT))


@pytest.mark.parametrize("where", ["_open_files", "_read"])
def test_gdrcopy(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Likewise; the device is open, or mapped without a descriptor."""
    maps = "7f0000000000-7f0000010000 rw-s 00000000 00:06 413 /dev/gdrdrv\n"
    answers = {"_open_files": lambda _pid: iter(["/dev/gdrdrv"]), "_read": lambda _pid, _name: maps}
    refuse_unsupported(idle(HAS))
    monkeypatch.setattr(processes, where, answers[where])
    with pytest.raises(UnsupportedState, match=f"process {HAS} has /dev/gdrdrv open") as caught:
        refuse_unsupported(idle(HAS))
    assert (caught.value.exit, caught.value.hint) == (3, "docs/limitations.md#gdrcopy")


def idle(pid: int) -> Any:
    """A target that runs and has nothing unusual."""
    status = StatusReply(StatusRecord(phase=AgentPhase.RUNNING), (), ())
    return SimpleNamespace(pid=pid, look=lambda: status, books=SimpleNamespace(reports=ReportedAllocations()))


# ---- room --------------------------------------------------------------------------------------------------------


def test_no_room_on_the_host(machine: Machine) -> None:
    machine.extra["GCR_ARENA_SHARE"] = "0.01"
    machine.memory = 1 << 40
    job = machine.told("llm")
    share = available_host_bytes() // 100
    job.ask(f"hold {share // (64 << 20) + 3} {64 << 20}")
    with untouched(machine, job):
        answer = machine.gcr("checkpoint", "llm")
        refused(answer, "no_room")
        assert bytes_short(answer) > 64 << 20


# ---- other daemons, other people's directories -------------------------------------------------------------------


def test_a_daemon_of_a_later_version(machine: Machine) -> None:
    """Everything but `daemon` is refused: an older daemon might not read what that one wrote."""
    script = "import gcr.version as v, runpy; v.__version__ = '99.1'; runpy.run_module('gcr.daemon', None, '__main__')"
    old = machine.begin_other(sys.executable, "-c", script)
    until(lambda: machine.socket.exists() or None, 10, "it serves")
    for command in (("checkpoint", "llm"), ("restore", "llm"), ("ps",)):
        message = refused(machine.gcr(*command), "wrong_version")
        assert "99.1" in message and __version__ in message
    assert machine.gcr("daemon", "stop").code == 0
    old.wait(10)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_runtime_directory_others_can_reach_into(machine: Machine, mode: int) -> None:
    job = machine.told("llm")
    with untouched(machine, job):
        machine.socket.parent.chmod(mode)
        refused(machine.gcr("checkpoint", "llm"), "unsafe_runtime")
        machine.socket.parent.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_runtime_directory_of_another_user(machine: Machine) -> None:
    machine.socket.parent.mkdir(mode=0o700)
    os.chown(machine.socket.parent, NOBODY, NOBODY)
    refused(machine.gcr("checkpoint", "llm"), "unsafe_runtime")
    answer = machine.gcr("run", "--simulate", "nvidia", "--", "true")
    assert (answer.code, answer.body["error"]["code"]) == (125, "unsafe_runtime")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_socket_that_another_process_serves(machine: Machine) -> None:
    """GCR_SOCKET leads to a stranger's listener: nothing is asked of it."""
    path = machine.folder / "theirs.sock"
    script = (
        f"import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind({str(path)!r});"
        f"os.setuid({NOBODY}); s.listen(); print('ready', flush=True); c, _ = s.accept();"
        "print(len(c.recv(4096)), flush=True)"
    )
    theirs = machine.stranger(sys.executable, "-c", script)
    machine.extra["GCR_SOCKET"] = str(path)
    refused(machine.gcr("checkpoint", "llm"), "unsafe_runtime")
    assert theirs.hear() == "0"


# ---- what only one vendor's driver can ---------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [at(AMD), at(ASCEND)], indirect=True)
def test_other_devices_where_no_driver_brings_a_process_back_on_any(machine: Machine) -> None:
    job, before = machine.start()
    machine.leave()
    message = refused(machine.gcr("restore", "llm", "--device", "0=1"), "unsupported_state")
    assert machine.where.vendor in message
    (found,) = [each for each in machine.gcr("backends").body["backends"] if each["name"] == machine.where.vendor]
    (able,) = [each for each in found["capabilities"] if each["name"] == "device_map"]
    assert not able["ok"] and able["evidence"]
    machine.come_back()
    assert job.ask() == before


# ---- not refused: the user's own preload -------------------------------------------------------------------------

PRELOADED = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { if (getenv("GCR_JOB")) write(2, "user preload\\n", 13); }
unsigned cuDriverAnswer(void) { return 42; }
"""


def test_the_users_own_preload_is_chained(machine: Machine) -> None:
    source, library = machine.folder / "user.c", machine.folder / "libuser.so"
    source.write_text(PRELOADED)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True, timeout=60)
    machine.extra["LD_PRELOAD"] = str(library)
    job = machine.told("llm")
    del machine.extra["LD_PRELOAD"]
    maps = Path(f"/proc/{machine.target('llm')}/maps").read_text()
    assert str(library) in maps and "libgcr_shim.so" in maps
    assert "user preload" in (machine.folder / "stderr").read_text()
    before = job.ask()
    assert machine.gcr("checkpoint", "llm").code == 0
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before
