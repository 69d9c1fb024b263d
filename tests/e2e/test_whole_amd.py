"""AMD: CRIU saves what the driver keeps of a process, by a plugin. Here one of ours stands for amdgpu's.

A simulated process holds a descriptor that CRIU cannot save by itself, as a real one holds /dev/kfd.
"""

import shutil
from pathlib import Path

import pytest
from filed import Filed, back, refused, stop
from machine import Machine, alive
from stored import store_of
from worlds import AMD

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.parametrize("machine", [AMD], indirect=True, ids=lambda world: world.name),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="/dev/fuse is not there to stand for /dev/kfd"),
]
PLUGIN = "amdgpu_plugin.so"


def restored(machine: Machine, name: str) -> tuple[int, str]:
    done = machine.gcr("restore", "--image", name, "--store", str(store_of(machine)))
    return done.code, done.body["error"]["code"]


@pytest.mark.parametrize("there", [False, True], ids=["missing", "broken"])
def test_without_the_plugin_nothing_is_touched(machine: Machine, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine.folder / "plugins"
    folder.mkdir()
    if there:
        (folder / PLUGIN).write_text("no shared object")
    monkeypatch.setenv("GCR_CRIU_PLUGINS", str(folder))  # of every daemon, also one that the job's supervisor starts
    job = Filed(machine)
    before = job.ask()
    assert refused(machine, "night") == ((4, "not_dumped") if there else (3, "criu_unusable"))
    assert machine.until_state("llm", "running", "suspended") == "running"
    assert job.ask() == before
    job.close()


def test_another_machine_is_refused_and_the_image_stays(machine: Machine, job: Filed) -> None:
    before = job.ask()
    stop(machine, "night")
    machine.gcr("daemon", "stop")
    kept = machine.simulated.rename(machine.simulated.with_suffix(".kept"))
    table = bytearray((kept / "machine").read_bytes())
    machine.simulated.mkdir(mode=0o700)
    table[8:12] = (1).to_bytes(4, "little")  # devices
    (machine.simulated / "machine").write_bytes(table)
    assert restored(machine, "night") == (4, "not_restored")
    assert not alive(job.pid)
    shutil.rmtree(machine.simulated)
    kept.rename(machine.simulated)
    back(machine, "night")
    assert job.ask() == before


def test_a_device_that_fails_is_found_although_criu_says_nothing(machine: Machine, job: Filed) -> None:
    before = job.ask()
    stop(machine, "night")
    (machine.simulated / "faults").write_text(f"checkpoint.restore@{job.pid}:1:fail=1\n")
    assert restored(machine, "night") == (4, "not_restored")
    assert machine.job("llm") is None
    assert not alive(job.pid)
    (machine.simulated / "faults").unlink()
    back(machine, "night")
    assert job.ask() == before


def test_a_job_that_runs_on_keeps_its_device(machine: Machine, job: Filed) -> None:
    before = job.ask()
    words = ("--image", "night", "--processes", "--leave-running", "--store", str(store_of(machine)))
    done = machine.gcr("checkpoint", "llm", *words)
    assert done.code == 0, done.body
    assert job.ask() == before
    machine.end_by_pid(job.pid)
    back(machine, "night")
    assert job.ask() == before
