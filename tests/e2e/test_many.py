"""A great many of everything, and nothing that grows or stays behind."""

import os
import statistics
import sys
from pathlib import Path

import pytest
from machine import TOLD, Machine, Victim, until

MIB = 1 << 20
CYCLES = 30
WARM = 5  # cycles after which everything that is kept has been made
LIMITED = ("sh", "-c", f"ulimit -n 1024; exec {sys.executable} {TOLD}")


def cycle(machine: Machine, job: Victim) -> None:
    gone = machine.ask("checkpoint", job.name)
    assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
    assert machine.ask("restore", job.name).code == 0


def row(machine: Machine, name: str) -> dict[str, int]:
    job = machine.job(name)
    assert job
    return dict(job["processes"][0])


@pytest.fixture
def fine_grained(machine: Machine) -> Machine:
    """Granules of 64 KiB, so that thousands of handles fit."""
    machine.extra |= {"GCR_SIM_GRANULARITY": str(64 << 10)}
    machine.memory = 1 << 30
    return machine


def test_more_than_ten_thousand_allocations(fine_grained: Machine) -> None:
    """Small ones, which share handles, and large ones; then every third is freed, and they go and come again."""
    machine = fine_grained
    job = machine.told("llm")
    assert job.ask("mixed 10200 256 300000") == "ok"
    before = job.ask()
    assert before.startswith("10204 held")
    cycle(machine, job)
    assert job.ask() == before
    assert job.ask("free_some 3") == "ok"
    fewer = job.ask()
    cycle(machine, job)
    assert job.ask() == fewer
    assert job.ask("mixed 500 256 300000") == "ok"
    assert not job.ask().startswith("wrong")


def test_more_handles_than_the_program_may_have_descriptors(fine_grained: Machine) -> None:
    machine = fine_grained
    job = machine.run("llm", *LIMITED)
    assert job.ask("handles 2100") == "ok"
    pid = machine.target("llm")
    soft = [line.split()[3] for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in line]
    assert soft == ["1024"]
    assert row(machine, "llm")["handles"] > 2100
    before = job.ask()
    for _ in range(2):
        descriptors = open_descriptors(pid)
        cycle(machine, job)
        assert open_descriptors(pid) == descriptors
        assert job.ask() == before


def test_a_few_descriptors_are_enough(fine_grained: Machine) -> None:
    """The program has used nearly all it may have: a batch is as large as there is room."""
    machine = fine_grained
    job = machine.run("llm", *LIMITED)
    job.ask("handles 100")
    assert int(job.ask("eat_descriptors 6")) > 900
    before = job.ask()
    cycle(machine, job)
    assert job.ask() == before


def test_nothing_grows(machine: Machine) -> None:
    machine.extra["GCR_PREPARE_ARENA"] = "no"  # it would grow in the background at its own time
    job = machine.told("llm")
    job.ask("alloc 30 300000")
    before = job.ask()
    who = {"target": machine.target("llm"), "supervisor": job.supervisor.pid, "gcrd": machine.daemon()}
    cycle(machine, job)
    (who["worker"],), (who["control helper"],) = machine.children("gcr.worker"), machine.children("gcr.control_helper")
    seen = []
    with machine.connected() as client:  # one for all: a connection that comes or goes is a descriptor of gcrd's
        for _ in range(CYCLES):
            client.request("checkpoint", {"target": "llm"})
            client.request("restore", {"target": "llm"})
            seen.append(look(who))
    assert job.ask() == before
    for name in who:
        descriptors = [now[name][0] for now in seen[WARM:]]
        assert len(set(descriptors)) == 1, f"{name}: {descriptors}"
        memory = [now[name][1] for now in seen[WARM:]]
        grown = statistics.median(memory[-5:]) - statistics.median(memory[:5])
        assert grown < MIB, f"{name}: resident {memory}"


def look(who: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Descriptors and resident bytes of each."""
    return {name: (open_descriptors(pid), resident(pid)) for name, pid in who.items()}


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_nothing_stays_behind(machine: Machine, suspended: bool) -> None:
    job = machine.told("llm")
    job.ask("alloc 10 1000000")
    cycle(machine, job)
    shared = in_shared_memory()
    if suspended:
        assert machine.ask("checkpoint", "llm").code == 0
    job.supervisor.terminate()
    job.supervisor.wait(10)
    until(lambda: machine.job("llm") is None or None, 10, "the job is forgotten")
    assert list((machine.folder / "run" / "gcr" / "journal").iterdir()) == []
    assert machine.gcr("daemon", "stop").code == 0
    until(lambda: not machine.children("gcr.worker") or None, 10, "the worker ends")
    assert sorted(path.name for path in (machine.folder / "run" / "gcr").iterdir()) == ["journal"]
    assert in_shared_memory() <= shared


def in_shared_memory() -> set[str]:
    """What is there besides the simulated machines of the tests."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("gcr-test-")}
