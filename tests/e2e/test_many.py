"""A great many of everything, and nothing that grows or stays behind."""

import resource
import sys
import time
from pathlib import Path

import pytest
from growth import Growth, descriptors, table_size
from machine import TOLD, VICTIMS, Machine, Victim, until
from worlds import FOREMOST, SLOW, everywhere

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
    cycle(machine, job)  # the worker is there
    assert job.ask("handles 2100") == "ok"
    pid = machine.target("llm")
    soft = [line.split()[3] for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in line]
    assert soft == ["1024"]
    assert row(machine, "llm")["handles"] > 2100
    before = job.ask()
    ours = [machine.daemon(), job.supervisor.pid, *(row["pid"] for row in machine.ask("status").body["workers"])]
    tables = [table_size(one) for one in ours]
    for _ in range(2):
        kept = descriptors(pid)
        cycle(machine, job)
        until(lambda kept=kept: descriptors(pid) == kept or None, 10, f"it has {kept} descriptors again")
        assert job.ask() == before
    assert [table_size(one) for one in ours] == tables  # while one grows the program stands for tens of milliseconds


def test_a_few_descriptors_are_enough(fine_grained: Machine) -> None:
    """The program has used nearly all it may have: a batch is as large as there is room."""
    machine = fine_grained
    job = machine.run("llm", *LIMITED)
    job.ask("handles 100")
    assert int(job.ask("eat_descriptors 6")) > 900
    before = job.ask()
    cycle(machine, job)
    assert job.ask() == before


@pytest.mark.parametrize(
    ("who", "spare", "asked"),
    [
        ("supervisor", 100, "checkpoint"),
        ("supervisor", 100, "restore"),
        ("gcrd", 8, "restore"),
        pytest.param("gcrd", 2, "image", marks=SLOW),
    ],
)
def test_a_process_of_ours_without_descriptors_says_so_and_nothing_is_lost(
    fine_grained: Machine, who: str, spare: int, asked: str
) -> None:
    machine = fine_grained
    job = machine.told("llm", "handles 300")
    before = job.ask()
    if asked == "image":
        cycle(machine, job)  # the worker is there
    if asked == "restore":
        assert machine.ask("checkpoint", "llm").code == 0
    pid = job.supervisor.pid if who == "supervisor" else machine.daemon()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + spare, limits[1]))
    if asked == "image":
        found = machine.ask("checkpoint", "llm", image="one", wait="durable", store=str(machine.folder / "store"))
    else:
        found = machine.ask(asked, "llm")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    error = found.body["error"]
    assert (found.code, error["code"], error["hint"]) == (4, "no_descriptors", "docs/troubleshooting.md#descriptors")
    if asked == "restore":
        assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before
    cycle(machine, job)
    assert job.ask() == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_of_very_many_processes(fine_grained: Machine) -> None:
    """More than a helper serves at once; what they do beside each other is queued."""
    machine, count = fine_grained, 160
    machine.memory = 1 << 33  # the contexts
    job = machine.run("crowd", sys.executable, str(VICTIMS / "crowd_victim.py"))
    for _ in range(count // 20):
        assert job.ask("spawn 20") == "20"
    held = str(count * (count + 1) // 2)
    assert job.ask() == held
    for _ in range(2):
        gone = machine.gcr("checkpoint", "crowd", "--timeout", "240", timeout=300.0)
        assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
        assert len(gone.body["processes"]) >= count
        back = machine.gcr("restore", "crowd", "--timeout", "240", timeout=300.0)
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        assert job.ask() == held


@pytest.mark.slow
def test_short_jobs_in_a_row_leave_the_arena_as_it_was(machine: Machine) -> None:
    """Beside one that stays: more of them than a worker had addresses for."""
    stays = machine.told("stays", "alloc 2 100000")
    before = stays.ask()
    until(lambda: warm(machine, "stays"), 15, "gcr ps says that all it needs is ready")
    cycle(machine, stays)
    (worker,) = machine.children("gcr.worker")
    kept: list[int] = []
    for number in range(48):
        job = machine.told(f"short-{number}", "alloc 3 100000")
        said = job.ask()
        cycle(machine, job)
        assert job.ask() == said
        job.supervisor.terminate()
        job.supervisor.wait(10)
        if number in (3, 47):
            kept.append(until(lambda: arena_bytes(machine, worker), 10, "what the last one had is given back"))
    assert kept[0] == kept[1]
    assert machine.children("gcr.worker") == [worker]
    cycle(machine, stays)
    assert stays.ask() == before


def warm(machine: Machine, name: str) -> bool:
    job = machine.job(name)
    assert job and job["arena"]["wanted_bytes"] == job["processes"][0]["covered_bytes"] > 0
    return bool(job["arena"]["ready_bytes"] == job["arena"]["wanted_bytes"])


def arena_bytes(machine: Machine, worker: int) -> int | None:
    """Returns a worker's bytes, once they no longer change and only the job that stays is left."""
    with machine.connected() as client:
        if len(client.request("ps")["jobs"]) > 1:
            return None
        (row,) = [row for row in client.request("status")["workers"] if row["pid"] == worker]
        time.sleep(1.5)
        (later,) = [row for row in client.request("status")["workers"] if row["pid"] == worker]
    return int(row["bytes"]) if row["bytes"] == later["bytes"] else None


@everywhere(slow=FOREMOST[1:])
def test_nothing_grows(machine: Machine) -> None:
    job = machine.told("llm", "alloc 30 300000")
    before = job.ask()
    with machine.connected() as client:  # one for all: a connection that comes or goes is a descriptor of gcrd's
        for number in range(WARM + CYCLES):
            client.request("checkpoint", {"target": "llm", **machine.where.how})
            client.request("restore", {"target": "llm"})
            if number == WARM:
                growth = Growth.of(machine, job)
            if number >= WARM:
                growth.look()
    assert job.ask() == before
    growth.judge()


@pytest.mark.alone  # others use the machine's shared memory, too
@everywhere(slow=FOREMOST[1:])
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_nothing_stays_behind(machine: Machine, suspended: bool) -> None:
    job = machine.told("llm", "alloc 10 1000000")
    machine.leave()
    machine.come_back()
    shared = in_shared_memory()
    if suspended:
        machine.leave()
    job.supervisor.terminate()
    job.supervisor.wait(10)
    until(lambda: machine.job("llm") is None or None, 10, "the job is forgotten")
    (left,) = (machine.folder / "state").glob("gcr/daemons/*")
    assert list((left / "journal").iterdir()) == list((left / "present").iterdir()) == []
    assert machine.gcr("daemon", "stop").code == 0
    until(lambda: not machine.children("gcr.worker") or None, 10, "the worker ends")
    assert sorted(path.name for path in (machine.folder / "run" / "gcr").iterdir()) == ["gcrd.sock.lock"]
    assert in_shared_memory() <= shared


def in_shared_memory() -> set[str]:
    """Returns the files there besides the simulated machines of the tests."""
    return {path.name for path in Path("/dev/shm").iterdir() if "gcr-test-" not in path.name}
