"""Jobs that cannot be stopped, and images that cannot come back here: each is refused, and nothing is lost."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filed import Filed, back, refused, stop
from machine import Machine, alive, kill
from stored import image_code, store_of
from worlds import ASCEND

from gcr.image.store.store import Store

pytestmark = pytest.mark.usefixtures("criu")
CLONE3 = 435  # on every architecture


@contextmanager
def filed(machine: Machine, first: str = "") -> Iterator[Filed]:
    job = Filed(machine, first=first)
    job.ask("mixed 6 1000 2000000")
    yield job
    job.close()


def error_of(machine: Machine, name: str, how: str = "--stop") -> dict[str, str]:
    gone = machine.gcr("checkpoint", "llm", "--image", name, how, "--store", str(store_of(machine)))
    assert gone.code == 3, gone.body
    found: dict[str, str] = gone.body["error"]
    return found


def test_what_criu_cannot_save_is_named_before_anything_stops(machine: Machine) -> None:
    (machine.folder / "locked").touch()
    with filed(machine, "exec 9<locked; flock 9;") as job:
        before = job.ask()
        error = error_of(machine, "night")
        assert (error["code"], error["state"]) == ("cannot_save", "running")
        assert f"process {job.pid}: descriptor 9, {machine.folder}/locked" in error["message"]
        assert "release the lock" in error["hint"]
        assert job.ask() == before
        stop(machine, "night", "--allow", "file-locks")
        assert takes_lock(machine)
        back(machine, "night")
        assert not takes_lock(machine)
        assert job.ask() == before


def takes_lock(machine: Machine) -> bool:
    """Returns whether another process can have the lock just now."""
    return subprocess.run(["flock", "--nonblock", machine.folder / "locked", "true"], timeout=30).returncode == 0


def test_without_criu_nothing_stops(machine: Machine) -> None:
    machine.extra["GCR_CRIU"] = "/nonexistent/criu"
    with filed(machine) as job:
        before = job.ask()
        assert refused(machine, "night") == (3, "criu_unusable")
        assert job.ask() == before


@pytest.mark.parametrize("machine", [ASCEND], indirect=True, ids=lambda world: world.name)
@pytest.mark.parametrize("how", ["--stop", "--processes"])
def test_a_context_that_no_plugin_of_criu_saves_is_named_also_when_the_job_is_suspended(
    machine: Machine, job: Filed, how: str
) -> None:
    before, text = job.ask(), f"the context of process {job.pid} stays on its device (ascend): CRIU cannot save that"
    error = error_of(machine, "night", how)
    assert (error["code"], error["state"], error["message"]) == ("unsupported_state", "running", text)
    assert job.ask() == before
    assert machine.gcr("checkpoint", "llm").code == 0
    error = error_of(machine, "night", how)
    assert (error["code"], error["state"], error["message"]) == ("unsupported_state", "suspended", text)
    machine.come_back()
    assert job.ask() == before
    assert not store_of(machine).exists() or not [*Store(store_of(machine)).images.names()]


def test_an_image_that_cannot_come_back_here_is_refused_before_there_is_a_process(machine: Machine) -> None:
    read, words = machine.folder / "read", ("restore", "--image", "night", "--store", str(store_of(machine)))
    read.write_text("before")
    with filed(machine, "exec 9<read;") as job:
        before = job.ask()
        *_, thread = sorted(int(each.name) for each in Path(f"/proc/{job.pid}/task").iterdir())
        assert thread != job.pid
        stop(machine, "night")

        read.write_text("behind")
        refusal = machine.gcr(*words)
        assert (refusal.code, refusal.body["error"]["code"]) == (3, "files_changed")
        assert f"{read}: it has other content" in refusal.body["error"]["message"]
        read.write_text("before")

        with damaged(machine):
            assert image_code(machine, "night") == (6, "damaged")

        for taken in (job.pid, thread):
            with process_with(taken):
                refusal = machine.gcr(*words)
                assert (refusal.code, refusal.body["error"]["code"]) == (4, "not_restored")
                assert refusal.body["error"]["message"] == f"pid {taken} is in use"

        other = machine.told("llm")
        assert machine.gcr(*words).code == 3
        machine.end(other)

        assert not alive(job.pid)
        back(machine, "night")
        assert job.ask() == before


@contextmanager
def damaged(machine: Machine) -> Iterator[None]:
    """Within it one byte of the store's first pack is another."""
    (pack, *_) = sorted((store_of(machine) / "packs").iterdir())
    at, data = pack.stat().st_size // 2, pack.read_bytes()
    pack.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    yield
    pack.write_bytes(data)


@contextmanager
def process_with(pid: int) -> Iterator[None]:
    """Within it another process has this pid. clone3 gives it, and the pids of other tests' processes go on as ever."""
    wanted = ctypes.c_int32(pid)
    fields = (ctypes.c_uint64 * 10)()
    fields[4], fields[8], fields[9] = signal.SIGCHLD, ctypes.addressof(wanted), 1  # exit_signal, set_tid, set_tid_size
    made = ctypes.PyDLL(None).syscall(CLONE3, fields, ctypes.sizeof(fields))
    if made == 0:
        os.execv("/bin/sleep", ["sleep", "1000"])
    assert made == pid
    yield
    kill(pid)
    os.waitpid(pid, 0)
