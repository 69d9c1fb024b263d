"""Device memory really gone: another program takes the whole device while the job is suspended."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from growth import leads_to
from machine import Machine, bytes_short, until
from worlds import AMD, AMD_QUIRKS, ASCEND, NVIDIA, at, everywhere

MIB = 1 << 20
CONTEXT = 16 * MIB  # what a context of the simulated device costs
PIDFD_GETFD = 438  # on every architecture
A_COUNT_THAT_LAGS = 0.3  # seconds; one that is waited for until it is steady takes half a second more

BYTES_OF = """
import pynvml as n
n.nvmlInit()
rows = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))
print(sum(row.usedGpuMemory for row in rows if row.pid == {pid}))
"""


def counted_for(machine: Machine, pid: int) -> int:
    """Bytes of one process by the device's own count, asked by a program of no part of gcr's."""
    return int(machine.bare(sys.executable, "-c", BYTES_OF.format(pid=pid)))


def test_another_program_takes_everything_and_the_job_waits_for_it(machine: Machine) -> None:
    job = machine.told("llm")
    job.ask("alloc 20 1000000")
    before = job.ask()
    assert machine.gcr("checkpoint", "llm").body["vram_after_bytes"] == 0

    taker = machine.stranger()
    taken = int(taker.ask("everything"))
    theirs = 4 * MIB + 2 * MIB + CONTEXT  # the taker's own allocations and context
    ours = CONTEXT  # the worker keeps its context while a job runs on its device
    assert taken == machine.memory - theirs - ours

    refused = machine.gcr("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room")
    assert refused.body["error"]["state"] == "suspended"
    assert bytes_short(refused) >= 20 * 1_000_000
    assert machine.job("llm")["state"] == "suspended"

    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_a_restore_that_has_no_room_for_the_driver_itself_is_not_begun(machine: Machine) -> None:
    """Room for the data alone is not enough: a driver that cannot make its context never gives the process back."""
    job = machine.told("llm")
    before = job.ask()
    gone = machine.gcr("checkpoint", "llm").body
    taker = machine.stranger()
    free = machine.memory - 2 * CONTEXT - 6 * MIB
    assert int(taker.ask(f"take {free - gone['bytes'] - CONTEXT // 2}")) > 0
    refused = machine.gcr("restore", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room"), refused.body
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_the_device_itself_counts_nothing_of_a_suspended_job(machine: Machine) -> None:
    job = machine.told("llm")
    pid = machine.target("llm")
    job.ask("alloc 20 1000000")
    assert counted_for(machine, pid) >= 20 * 1_000_000
    machine.gcr("checkpoint", "llm")
    assert counted_for(machine, pid) == 0


def test_what_another_job_has_is_not_taken_for_this_one_s(machine: Machine) -> None:
    """After a restore drivers count a job's memory for the worker that made it: while the next one leaves, too."""
    other = machine.told("other", "alloc 5 20000000")
    content = other.ask()
    theirs = machine.ask("checkpoint", "other").body["bytes"]
    machine.ask("restore", "other")
    job = machine.told("llm", "alloc 20 1000000")
    before = job.ask()
    gone = machine.ask("checkpoint", "llm").body
    assert gone["vram_after_bytes"] == 0
    assert gone["phases_s"]["vram_free"] - gone["phases_s"]["decided"] < 4  # it was not waited for: that takes five

    taker = machine.stranger()
    free = machine.memory - (theirs + CONTEXT) - CONTEXT - (6 * MIB + CONTEXT)
    assert int(taker.ask(f"take {free - gone['bytes'] - 2 * CONTEXT}")) > 0
    assert machine.ask("restore", "llm").code == 0  # nor is room wanted for it
    assert job.ask() == before
    assert other.ask() == content


def test_memory_that_is_still_held_is_said_to_be_in_use(machine: Machine) -> None:
    """Drivers count it for no process once its maker let go of it: only the device as a whole shows it."""
    machine.memory = 1 << 30
    job = machine.told("llm", "alloc 5 60000000")
    before, held = job.ask(), machine.folder / "held"
    machine.inject(f"checkpoint.handed_over hold {held}")
    running = machine.command("checkpoint")
    machine.wait_held()
    stolen = [steal(job.supervisor.pid, fd) for fd in device_memory(job.supervisor.pid)]
    held.unlink()
    gone = running.result(timeout=60)
    assert gone.code == 0
    assert gone.body["vram_after_bytes"] >= 280 * MIB
    for fd in stolen:
        os.close(fd)
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before
    assert machine.ask("checkpoint", "llm").body["vram_after_bytes"] == 0


def device_memory(pid: int) -> list[int]:
    """Descriptors of a process that are memory of a simulated device."""
    links = {int(link.name): Path(leads_to(link)) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return [fd for fd, where in links.items() if where.parent.name == "physical"]


def steal(pid: int, fd: int) -> int:
    """The very same open file of another process, as it would have been sent."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    mine: int = libc.syscall(PIDFD_GETFD, process, fd, 0)
    os.close(process)
    assert mine >= 0, os.strerror(ctypes.get_errno())
    return mine


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD)], indirect=True)
def test_a_context_that_stays_is_not_waited_for(machine: Machine) -> None:
    """This holds also if some memory came by a restore, counted for no process or for a worker, and some is new."""
    waited: tuple[list[float], list[float]] = ([], [])
    latest = time.monotonic() + 60
    while not all(min(each, default=1.0) < A_COUNT_THAT_LAGS for each in waited):
        assert time.monotonic() < latest, waited  # a real wait occurs each time; a delay by other load does not
        job = machine.told("llm", "alloc 1 5000")
        for each in waited:
            phases = machine.ask("checkpoint", "llm", data_only=True).body["phases_s"]
            each.append(phases["vram_free"] - phases["decided"])
            assert machine.ask("restore", "llm").code == 0
            assert job.ask("alloc 6 5000000") == "ok"
        machine.end(job)


def test_what_a_suspended_job_frees_when_it_is_killed(machine: Machine) -> None:
    job = machine.told("llm")
    pid = machine.target("llm")
    assert machine.gcr("checkpoint", "llm").code == 0
    os.kill(pid, signal.SIGKILL)
    assert job.supervisor.wait(10) == 128 + signal.SIGKILL
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    free = machine.stranger().ask("everything")
    assert int(free) == machine.memory - 6 * MIB - 2 * CONTEXT


BARE_CONTEXT = """
import sys
from cuda.bindings import driver
driver.cuInit(0)
error, device = driver.cuDeviceGet(0)
error, context = driver.cuDevicePrimaryCtxRetain(device)
driver.cuCtxSetCurrent(context)
print("ready", flush=True)
for line in sys.stdin:
    print(int(driver.cuCtxSynchronize()[0]), flush=True)
"""


def test_a_program_with_a_context_and_no_memory(machine: Machine) -> None:
    """No memory is handed over, and yet the device is asked, and room is needed for the driver."""
    job = machine.run("bare", sys.executable, "-c", BARE_CONTEXT)
    gone = machine.gcr("checkpoint", "bare").body
    assert (gone["ok"], gone["bytes"], gone["vram_after_bytes"]) == (True, 0, 0), gone

    taker = machine.stranger()
    assert int(taker.ask("everything")) > 0
    refused = machine.gcr("restore", "bare")
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room"), refused.body
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert machine.gcr("restore", "bare").code == 0
    assert job.ask() == "0"


@everywhere(slow=[NVIDIA, AMD_QUIRKS])
def test_memory_that_comes_after_the_first_count_is_not_waited_for(machine: Machine) -> None:
    """A context's size is known only once the program stands: its memory is not mistaken for the context's."""
    job = machine.told("llm", "alloc 5 1000000")
    with machine.held_at("checkpoint.prepared"):
        running = machine.command("checkpoint")
        machine.wait_held()
        assert job.ask("alloc 20 1000000") == "ok"
        released = time.monotonic()
    gone = running.result(timeout=60)
    assert gone.code == 0, gone.body
    assert gone.body["bytes"] > 20_000_000
    assert time.monotonic() - released < 20.0
    machine.come_back()
    assert " held, digest " in job.ask()


WHO = """
import sys
from gcr_{vendor}.backend import {name}Backend
backend, pid = {name}Backend(), int(sys.argv[1])
control = backend.control()
counted = {{device.uuid: control.holders(device.uuid) for device in backend.devices()}}
print(pid, {{uuid: held[pid] for uuid, held in counted.items() if pid in held}} == control.inspect(pid).bytes_by_device)
print(sum(map(len, counted.values())))
"""


@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD), at(ASCEND)], indirect=True)
def test_holders_of_memory_are_named_as_the_device_counts(machine: Machine) -> None:
    machine.devices = 2
    machine.told("llm", "alloc 3 100000")
    pid = machine.target("llm")
    stranger = machine.stranger()
    assert stranger.ask("alloc 3 100000") == "ok"
    program = WHO.format(vendor=machine.vendor, name=machine.vendor.capitalize())
    said = machine.bare(sys.executable, "-c", program, str(pid)).split()
    assert said[:2] == [str(pid), "True"] and int(said[2]) >= 2
