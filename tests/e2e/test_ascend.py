"""Tests of Ascend alone: snapshots by a process's own agent, of every release; other users of the device; refusals.

Jobs of every vendor are tested elsewhere.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machine import PATIENCE, ROOT, VICTIMS, Machine, Victim, alive, kill, until
from worlds import AMD, ASCEND, NVIDIA, World, slowly

from gcr.native import sim_dir

TOLD = str(VICTIMS / "acl_told.py")
CONTEXT = 16 << 20


def machine_of(folder: Path, version: str = "") -> Machine:
    """Returns a machine with the runtime of one CANN release for its jobs."""
    extra = ASCEND.environment()
    if version:
        extra |= {"GCR_SIM_KERNELS": str(sim_dir(f"ascend-{version}") / "kernels.so"), "GCR_SIM_CANN_VERSION": version}
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    return Machine(folder, vendor="ascend", where=ASCEND, extra=extra)


@pytest.fixture
def ascend(tmp_path: Path) -> Iterator[Machine]:
    made = machine_of(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/victims/acl_victim.c as its maker would link it."""
    program = tmp_path_factory.mktemp("acl") / "acl_victim"
    words: Sequence[object] = ("cc", "-Wall", "-Werror", f"-I{ROOT / 'shim'}", "-o", program, VICTIMS / "acl_victim.c")
    subprocess.run([*map(str, words), f"-L{sim_dir('ascend')}", "-lascendcl", "-lpthread"], check=True, timeout=60)
    return program


def end(program: Victim) -> None:
    program.supervisor.kill()
    program.supervisor.wait(10)


def swap(machine: Machine, *options: str) -> dict[str, object]:
    gone = machine.gcr("checkpoint", "llm", *options)
    assert gone.code == 0, gone.body
    back = machine.gcr("restore", "llm")
    assert back.code == 0, back.body
    assert back.body["state"] == "running"
    return gone.body


def code_of(answer: object) -> tuple[int, str]:
    return answer.code, answer.body["error"]["code"]  # type: ignore[attr-defined]


# ---- there and back -----------------------------------------------------------------------------------------------


def test_a_linked_program_prints_the_same_swapped_and_bare(ascend: Machine, linked: Path) -> None:
    steps = 6
    bare = ascend.begin_bare(str(linked), "3", "--interactive")
    expected = [bare.ask() for _ in range(steps)]
    end(bare)  # a restore wants the device free of others
    job = ascend.run("llm", str(linked), "3", "--interactive")
    seen = []
    for number in range(steps):
        seen.append(job.ask())
        swap(ascend, *(["--data-only"] if number % 2 else []))
    assert seen == expected


def test_memory_that_is_mapped_nowhere_and_kernels_after_a_swap(ascend: Machine) -> None:
    job = ascend.told("llm", "alloc 3 5000000", "unmapped 2", "alloc 5 100", "free_some 3")
    before = job.ask("?")
    for _ in range(2):
        swap(ascend)
        assert job.ask("add 7") == "ok"
        assert job.ask("?") == before


@pytest.mark.parametrize("pages", ["gigabyte", slowly("huge1g")])
def test_pages_of_1_gib_come_back_as_such(tmp_path: Path, pages: str) -> None:
    machine = machine_of(tmp_path)
    machine.memory = 3 << 30
    try:
        job = machine.told("llm", pages, "alloc 1 1000")
        before = job.ask("?")
        assert int(str(swap(machine)["bytes"])) >= 1 << 30
        assert job.ask("?") == before
    finally:
        machine.close()


@pytest.mark.parametrize("version", ["9.0", "8.5"])
def test_releases_whose_snapshots_take_no_parameters(tmp_path: Path, version: str) -> None:
    machine = machine_of(tmp_path, version)
    try:
        job = machine.told("llm", "alloc 3 300000")
        before = job.ask("?")
        swap(machine)
        assert job.ask("?") == before
    finally:
        machine.close()


def test_callbacks_of_the_program_may_ask_the_runtime(ascend: Machine) -> None:
    """They run on the agent's thread, while the program's own calls are held back."""
    job = ascend.told("llm", "alloc 1 300000", "callbacks")
    before = job.ask("?")
    swap(ascend)
    assert job.ask("called_back") == "6"
    assert job.ask("?") == before


# ---- what is said of it -------------------------------------------------------------------------------------------


def test_the_device_still_counts_the_context_and_the_report_says_so(ascend: Machine) -> None:
    ascend.told("llm", "alloc 4 4000000")
    gone = ascend.gcr("checkpoint", "llm")
    assert (gone.code, gone.body["state"]) == (0, "suspended")
    assert gone.body["vram_after_bytes"] == CONTEXT
    assert gone.body["control_s"] is not None
    phases = gone.body["phases_s"]
    assert phases["vram_free"] - phases["decided"] < 4, "a context that stays is not waited for"
    assert ascend.gcr("restore", "llm").code == 0


def test_nothing_of_gcrs_uses_the_device(ascend: Machine) -> None:
    """A restore wants it free of others: the worker has no context, the helper only looks."""
    ascend.told("llm", "alloc 1 300000")
    assert ascend.gcr("checkpoint", "llm").code == 0
    assert ascend.children("gcr.worker")
    look = "from acl_calls import *; acl.dcmi_init(); say(acl.dcmi_get_device_hbm_info(0, 0).memory_usage)"
    assert int(ascend.bare(sys.executable, "-c", look)) << 20 == CONTEXT, "the job's own context and nothing else"
    assert ascend.gcr("restore", "llm").code == 0


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_without_snapshot_calls_only_the_data_can_go(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "8.0")
    try:
        job = machine.told("llm", "alloc 3 300000")
        before = job.ask("?")
        refused = machine.gcr("checkpoint", "llm")
        assert code_of(refused) == (3, "unsupported_state"), refused.body
        assert "--data-only" in refused.body["error"]["hint"]
        assert job.ask("?") == before
        assert swap(machine, "--data-only")["state"] == "data_suspended"
        assert job.ask("?") == before
    finally:
        machine.close()


def test_a_device_that_others_use_is_named_and_the_job_stays_suspended(ascend: Machine) -> None:
    job = ascend.told("llm", "alloc 1 300000")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    other = ascend.begin_bare(sys.executable, TOLD)
    refused = ascend.gcr("restore", "llm")
    assert code_of(refused) == (3, "device_shared"), refused.body
    assert f"process {other.supervisor.pid}" in refused.body["error"]["message"]
    assert refused.body["error"]["state"] == "suspended"
    end(other)
    assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before


def test_of_two_jobs_on_a_device_only_one_is_suspended_as_a_whole(ascend: Machine) -> None:
    """Each would keep the other from coming back, for good. A new daemon knows it as well."""
    first, second = ascend.told("first", "alloc 1 300000"), ascend.told("second", "alloc 2 300000")
    contents = first.ask("?"), second.ask("?")
    assert ascend.gcr("checkpoint", "first").code == 0
    for _ in range(2):
        refused = ascend.gcr("checkpoint", "second")
        assert code_of(refused) == (3, "device_shared"), refused.body
        assert "job first" in refused.body["error"]["message"]
        assert (second.ask("?"), refused.body["error"]["state"]) == (contents[1], "running")
        kill(*ascend.children("gcr.daemon"))
        ascend.until_state("second", "running")
    assert ascend.gcr("checkpoint", "second", "--data-only").code == 0
    refused = ascend.gcr("restore", "first")
    assert code_of(refused) == (3, "device_shared"), refused.body
    assert "of job second, data_suspended" in refused.body["error"]["message"]
    assert ascend.gcr("restore", "second").code == 0
    assert second.ask("?") == contents[1]
    ascend.end(second)
    assert ascend.gcr("restore", "first").code == 0
    assert first.ask("?") == contents[0]
    assert ascend.gcr("checkpoint", "first").code == 0


def test_two_processes_on_one_device_are_refused(ascend: Machine) -> None:
    """Each would keep the other from coming back."""
    both = f"sleep 60 | {sys.executable} {TOLD} >/dev/null & exec {sys.executable} {TOLD}"
    job = ascend.run("llm", "sh", "-c", both)
    before = job.ask("?")
    ascend.targets("llm", 2)
    refused = ascend.gcr("checkpoint", "llm")
    assert code_of(refused) == (3, "unsupported_state"), refused.body
    assert "share device" in refused.body["error"]["message"]
    assert job.ask("?") == before


def test_memory_that_a_snapshot_would_lose_is_refused_and_data_only_leaves_it(ascend: Machine) -> None:
    job = ascend.told("llm", "alloc 1 300000")
    assert job.ask("shared").isdigit()
    before = job.ask("?")
    assert code_of(ascend.gcr("checkpoint", "llm")) == (3, "unsupported_state")
    assert job.ask("?") == before


def test_a_program_in_a_snapshot_of_its_own_is_refused(ascend: Machine) -> None:
    job = ascend.told("llm", "alloc 1 300000", "snapshot", "locked")
    refused = ascend.gcr("checkpoint", "llm")
    assert code_of(refused) == (3, "wrong_state"), refused.body
    assert alive(job.supervisor.pid)


def test_a_process_that_gcr_did_not_start_is_refused(ascend: Machine) -> None:
    other = ascend.begin_bare(sys.executable, TOLD)
    refused = ascend.gcr("checkpoint", str(other.supervisor.pid))
    assert code_of(refused) == (3, "unsupported_state"), refused.body
    assert other.ask("alloc 1 1000") == "ok"


# ---- failures of the runtime -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["aclrtSnapShotProcessLock", "aclrtSnapShotProcessBackup"])
def test_a_snapshot_that_fails_is_taken_back(tmp_path: Path, call: str) -> None:
    machine = machine_of(tmp_path)
    try:
        job = machine.told("llm", "alloc 3 300000", "handles 2")
        before = job.ask("?")
        (machine.simulated / "faults").write_text(f"{call}:1:fail=507908\n")
        failed = machine.gcr("checkpoint", "llm")
        assert code_of(failed) == (4, "driver_error"), failed.body
        assert call in failed.body["error"]["message"]
        assert job.ask("?") == before
        (machine.simulated / "faults").write_text("")
        swap(machine)
        assert job.ask("?") == before
    finally:
        machine.close()


def test_a_checkpoint_is_taken_back_though_others_use_the_device(ascend: Machine) -> None:
    """Unlock alone takes it back: a restore would be refused."""
    job = ascend.told("llm", "alloc 3 300000")
    before = job.ask("?")
    ascend.begin_bare(sys.executable, TOLD)
    ascend.inject("checkpoint.staged fail")
    assert code_of(ascend.gcr("checkpoint", "llm")) == (4, "injected_fault")
    assert job.ask("?") == before
    assert ascend.job("llm")["state"] == "running"  # type: ignore[index]


def test_a_restore_that_the_runtime_refuses_leaves_the_job_suspended(ascend: Machine) -> None:
    ascend.extra["GCR_CONTROL_S"] = "1"  # so long a refused step is tried again
    job = ascend.told("llm", "alloc 3 300000")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    (ascend.simulated / "faults").write_text("aclrtSnapShotProcessRestore:*:fail=507909\n")
    failed = ascend.gcr("restore", "llm")
    assert failed.code == 4, failed.body
    assert ascend.job("llm")["state"] == "suspended"  # type: ignore[index]
    (ascend.simulated / "faults").write_text("")
    assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before


@pytest.mark.parametrize("other", [AMD, NVIDIA], ids=str)
def test_a_worker_of_another_vendor_s_job_that_is_over_is_not_in_the_way(tmp_path: Path, other: World) -> None:
    """Workers stay for a while; an unused one goes before a restore wants the device for itself.

    Another vendor may name the device by another UUID.
    """
    machine = machine_of(tmp_path)
    try:
        over = job_of(machine, other)
        assert machine.gcr("checkpoint", "over", *other.options).code == 0
        assert machine.gcr("restore", "over").code == 0
        machine.end(over)
        assert machine.children(f"gcr.worker\0{other.vendor}")
        job = machine.told("llm", "alloc 1 300000")
        before = job.ask("?")
        swap(machine)
        assert not machine.children(f"gcr.worker\0{other.vendor}")
        assert job.ask("?") == before
    finally:
        machine.close()


def test_a_worker_of_another_vendor_that_its_job_needs_is_named_with_the_job(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    try:
        over = job_of(machine, AMD)
        assert machine.gcr("checkpoint", "over", *AMD.options).code == 0
        assert machine.gcr("restore", "over").code == 0
        until(lambda: is_prepared(machine, "over"), PATIENCE, "its worker has room for its next checkpoint")
        job = machine.told("llm", "alloc 1 300000")
        assert machine.gcr("checkpoint", "llm").code == 0
        refused = machine.gcr("restore", "llm")
        assert code_of(refused) == (3, "device_shared"), refused.body
        assert "a worker of gcr's for job over (" in refused.body["error"]["message"]
        machine.end(over)
        assert machine.gcr("restore", "llm").code == 0
        assert job.ask("?")
    finally:
        machine.close()


def is_prepared(machine: Machine, name: str) -> bool:
    arena = machine.job(name)["arena"]
    return bool(arena and arena["ready_bytes"] == arena["wanted_bytes"] > 0)


def job_of(machine: Machine, other: World) -> Victim:
    """A job named `over` of another vendor, with the same simulated devices."""
    extra = [f"{name}={value}" for name, value in other.environment().items()]
    words = ("run", "--name", "over", "--simulate", other.vendor, "--", sys.executable, str(VICTIMS / other.told))
    job = Victim("over", machine.begin_other("env", *extra, sys.executable, "-m", "gcr", "--json", *words))
    assert job.hear() == "ready"
    assert job.ask("alloc 1 300000") == "ok"
    return job
