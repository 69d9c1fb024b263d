"""The vendor of the devices of a process that gcr did not start."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gcr.daemon import foreign
from gcr.daemon.jobs import Ends, Program
from gcr.daemon.permission import OURSELVES
from gcr.declarations import Declaration, declarations
from gcr.engine.node import World
from gcr.errors import BackendMissing, Interrupted, NoSuchJob, NotAGpuProcess, UnsupportedState


@contextmanager
def holding(*paths: Path, **environment: str) -> Iterator[int]:
    """A process that has these files open."""
    script = "import sys; held = [open(path) for path in sys.argv[1:]]; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, paths)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        yield process.pid
    finally:
        process.communicate()


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev."""
    moved = {
        vendor: structs.replace(each, device_files=[path.replace("/dev", str(tmp_path)) for path in each.device_files])
        for vendor, each in declarations().items()
    }
    monkeypatch.setattr(foreign, "declarations", lambda: moved)
    for name in ("nvidia0", "kfd", "davinci3", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "vendor"),
    [(["nvidia0"], "nvidia"), (["kfd"], "amd"), (["davinci3"], "ascend"), (["null"], "nvidia"), ([], "nvidia")],
)
def test_the_vendor_is_that_of_the_device_it_has_open(devices: Path, files: list[str], vendor: str) -> None:
    with holding(*(devices / name for name in files)) as pid:
        world = foreign.world_of_process(pid)
    assert (world.backend, world.simulated) == (vendor, False)


def test_a_simulated_device_is_what_its_environment_says(devices: Path) -> None:
    with holding(devices / "kfd", GCR_SIMULATE="ascend", GCR_SIM_STATE="/nowhere") as pid:
        world = foreign.world_of_process(pid)
    assert (world.backend, world.simulated) == ("ascend", True)
    assert ("GCR_SIM_STATE", "/nowhere") in world.environment


def test_a_process_that_is_gone_is_nobodys() -> None:
    assert foreign.world_of_process(2**22 + 1).backend == "nvidia"


def drive_with(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Lets this library be the only driver."""
    monkeypatch.setattr(foreign, "declarations", lambda: {"nvidia": Declaration((library,))})


def patient(limit: float) -> float:
    return limit


def uncounted() -> Any:
    """Raises as a machine without a backend for the driver."""
    raise BackendMissing("none")


def called_off(_limit: float) -> float:
    raise Interrupted("the caller left")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a job of this process, which may have a driver loaded."""
    monkeypatch.setattr(foreign, "HELLO_SECONDS", 0.05)
    monkeypatch.setattr(foreign, "LATE_HELLO_SECONDS", 60.0)
    return SimpleNamespace(program=Program(pid=os.getpid()), living=[], begun=[], processes={}, ends=Ends())


def test_an_agent_that_is_late_is_waited_for_if_there_is_a_driver(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drive_with(monkeypatch, "libc.so")
    threading.Timer(0.5, job.begun.append, ["its agent"]).start()
    assert foreign.await_hello(job, patient, uncounted) == ["its agent"]


def test_without_any_driver_no_process_is_waited_for(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drive_with(monkeypatch, "/no/such")
    began = time.monotonic()
    with pytest.raises(NotAGpuProcess, match="no process of this job uses a device"):
        foreign.await_hello(job, patient, uncounted)
    assert time.monotonic() - began < 30


def test_a_driver_that_gcr_hears_nothing_of_is_named(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drive_with(monkeypatch, "libc.so")
    monkeypatch.setattr(foreign, "LATE_HELLO_SECONDS", 0.2)
    with pytest.raises(NotAGpuProcess, match=f"process {os.getpid()} has libc.so loaded"):
        foreign.await_hello(job, patient, uncounted)


def test_a_job_that_is_over_is_not_waited_for(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "HELLO_SECONDS", 60.0)
    job.ends.finished = True
    with pytest.raises(NotAGpuProcess):
        foreign.await_hello(job, patient, uncounted)


def test_no_process_is_waited_for_once_the_caller_has_left(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drive_with(monkeypatch, "libc.so")
    with pytest.raises(Interrupted):
        foreign.await_hello(job, called_off, uncounted)


class Counted:
    """A device's own count of bytes, by pid."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = {int(name.lstrip("p")): size for name, size in sizes.items()}

    def devices(self) -> list[Any]:
        return [SimpleNamespace(uuid="GPU-1")]

    def holders(self, _uuid: str) -> dict[int, int]:
        return self.sizes


@pytest.fixture
def half_heard(job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a job on a simulated device; all its processes have a driver loaded."""
    drive_with(monkeypatch, "libc.so")
    job.world = World("nvidia", simulated=True)
    return job


@pytest.mark.parametrize("child", [False, True])
def test_neither_a_program_nor_its_child_is_left_behind(
    half_heard: Any, child: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "LATE_HELLO_SECONDS", 0.1)
    with holding() as pid:
        unheard, heard = (pid, os.getpid()) if child else (os.getpid(), pid)
        count: Any = Counted(**{f"p{unheard}": 48 << 20})
        with pytest.raises(UnsupportedState, match=f"process {unheard} of this job has 48 MiB on its device"):
            foreign.refuse_unheard_beside(half_heard, lambda: {heard}, count, patient)
        foreign.refuse_unheard_beside(half_heard, lambda: {heard, unheard}, count, patient)


def test_one_that_ends_meanwhile_is_nobodys_loss(half_heard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LATE_HELLO_SECONDS", 60.0)
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(0.5)"], stdout=-1)
    with child:
        assert child.stdout
        child.stdout.readline()
        count: Any = Counted(**{f"p{child.pid}": 48 << 20})
        foreign.refuse_unheard_beside(half_heard, lambda: {os.getpid()}, count, patient)
        count = Counted(**{f"p{os.getpid()}": 48 << 20})
        with pytest.raises(Interrupted):
            foreign.refuse_unheard_beside(half_heard, set, count, called_off)


def test_a_process_without_a_driver_is_refused_before_a_driver_is_asked() -> None:
    with holding() as pid:
        with pytest.raises(NotAGpuProcess, match=f"process {pid} uses no device"):
            foreign.refuse_without_driver(pid, World("nvidia"))
        foreign.refuse_without_driver(pid, World("nvidia", simulated=True))
        foreign.refuse_without_driver(pid, World("of a plugin"))


def test_a_process_with_a_device_open_is_not_refused(devices: Path) -> None:
    with holding(devices / "kfd") as pid:
        foreign.refuse_without_driver(pid, World("amd"))


@contextmanager
def zombie() -> Iterator[int]:
    with subprocess.Popen(["/bin/true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        yield ended.pid


def test_a_process_that_has_ended_is_no_job():
    with zombie() as ended:
        for pid in (ended, 2**22 + 1):
            with pytest.raises(NoSuchJob, match=f"there is no process {pid}: it has ended") as caught:
                foreign.foreign_job(pid, None, OURSELVES)
            assert (caught.value.state, caught.value.hint) == ("exited", "gcr ps --all")
