"""Jobs on simulated Ascend devices: the agent copies the data out and makes the runtime's snapshots itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machine import ROOT, VICTIMS, Machine, Victim, alive

from gcr.native import sim_dir

TOLD = str(VICTIMS / "acl_told.py")
CONTEXT = 16 << 20
BINDING = (ROOT / "backends" / "ascend", ROOT / "core", VICTIMS)


def machine_of(folder: Path, version: str = "", **settings: str) -> Machine:
    """A machine whose jobs see the runtime of one CANN release."""
    libraries = sim_dir(f"ascend-{version}" if version else "ascend")
    extra = {
        "GCR_SIM_KERNELS": str(libraries / "kernels.so"),
        "PYTHONPATH": os.pathsep.join([*map(str, BINDING), os.environ.get("PYTHONPATH", "")]),
        **settings,
    }
    if version:
        extra["GCR_SIM_CANN_VERSION"] = version
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    return Machine(folder, vendor="ascend", extra=extra)


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


def told(machine: Machine, *lines: str) -> Victim:
    job = machine.run("llm", sys.executable, TOLD)
    for line in lines:
        assert job.ask(line) == "ok", line
    return job


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


def test_a_program_through_ctypes_keeps_every_byte_and_address(ascend: Machine) -> None:
    job = told(ascend, "alloc 20 300000", "alloc 3 5000000", "handles 4", "unmapped 2", "alloc 5 100", "free 3")
    before, addresses = job.ask("?"), job.ask("address")
    for _ in range(5):
        assert swap(ascend)["strategy"] == "copyout"
        assert job.ask("?") == before
        assert job.ask("address") == addresses
    assert job.ask("add 7") == "ok"
    assert job.ask("?") == before
    assert job.ask("alloc 2 1000000") == "ok"
    swap(ascend)
    assert job.ask("?") != before


def test_pages_of_1_gib_come_back_as_such(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    machine.memory = 3 << 30
    try:
        job = told(machine, "huge1g", "handles 1 10", "alloc 1 1000")
        before = job.ask("?")
        assert int(str(swap(machine)["bytes"])) >= 2 << 30
        assert job.ask("?") == before
    finally:
        machine.close()


@pytest.mark.parametrize("version", ["9.0", "8.5"])
def test_releases_whose_snapshots_take_no_parameters(tmp_path: Path, version: str) -> None:
    machine = machine_of(tmp_path, version)
    try:
        job = told(machine, "alloc 3 300000")
        before = job.ask("?")
        swap(machine)
        assert job.ask("?") == before
    finally:
        machine.close()


def test_callbacks_of_the_program_may_ask_the_runtime(ascend: Machine) -> None:
    """They run on the agent's thread, while the program's own calls are held back."""
    job = told(ascend, "alloc 1 300000", "callbacks")
    before = job.ask("?")
    swap(ascend)
    assert job.ask("called_back") == "6"
    assert job.ask("?") == before


# ---- what is said of it -------------------------------------------------------------------------------------------


def test_the_device_still_counts_the_context_and_the_report_says_so(ascend: Machine) -> None:
    told(ascend, "alloc 4 4000000")
    gone = ascend.gcr("checkpoint", "llm")
    assert (gone.code, gone.body["state"]) == (0, "suspended")
    assert gone.body["vram_after_bytes"] == CONTEXT
    assert gone.body["control_s"] is not None
    assert gone.body["wall_s"] < 5, "nobody waits for a context that stays"
    assert ascend.gcr("restore", "llm").code == 0


def test_a_suspended_program_waits(ascend: Machine) -> None:
    job = told(ascend, "alloc 1 300000")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    job.tell("?")
    assert job.silent(0.5)
    assert ascend.gcr("restore", "llm").code == 0
    assert job.hear() == before


def test_nothing_of_gcrs_uses_the_device(ascend: Machine) -> None:
    """A restore wants it free of others: the worker has no context, the helper only looks."""
    told(ascend, "alloc 1 300000")
    assert ascend.gcr("checkpoint", "llm").code == 0
    assert ascend.children("gcr.worker")
    look = "from acl_calls import *; acl.dcmi_init(); say(acl.dcmi_get_device_hbm_info(0, 0).memory_usage)"
    assert int(ascend.bare(sys.executable, "-c", look)) << 20 == CONTEXT, "the job's own context and nothing else"
    assert ascend.gcr("restore", "llm").code == 0


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_without_snapshot_calls_only_the_data_can_go(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "8.0")
    try:
        job = told(machine, "alloc 3 300000")
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
    job = told(ascend, "alloc 1 300000")
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
    job = told(ascend, "alloc 1 300000")
    assert job.ask("shared").isdigit()
    before = job.ask("?")
    assert code_of(ascend.gcr("checkpoint", "llm")) == (3, "unsupported_state")
    assert job.ask("?") == before


def test_a_program_in_a_snapshot_of_its_own_is_refused(ascend: Machine) -> None:
    job = told(ascend, "alloc 1 300000", "snapshot", "locked")
    refused = ascend.gcr("checkpoint", "llm")
    assert code_of(refused) == (3, "wrong_state"), refused.body
    assert alive(job.supervisor.pid)


def test_a_process_that_gcr_did_not_start_is_refused(ascend: Machine) -> None:
    other = ascend.begin_bare(sys.executable, TOLD)
    refused = ascend.gcr("checkpoint", str(other.supervisor.pid))
    assert code_of(refused) == (3, "unsupported_state"), refused.body
    assert other.ask("alloc 1 1000") == "ok"


# ---- deaths, and failures on the way -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["aclrtSnapShotProcessLock", "aclrtSnapShotProcessBackup"])
def test_a_snapshot_that_fails_is_taken_back(tmp_path: Path, call: str) -> None:
    machine = machine_of(tmp_path)
    try:
        job = told(machine, "alloc 3 300000", "handles 2")
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
    """By Unlock alone: a restore would be refused."""
    job = told(ascend, "alloc 3 300000")
    before = job.ask("?")
    ascend.begin_bare(sys.executable, TOLD)
    ascend.inject("checkpoint.staged fail")
    assert code_of(ascend.gcr("checkpoint", "llm")) == (4, "injected_fault")
    assert job.ask("?") == before
    assert ascend.job("llm")["state"] == "running"  # type: ignore[index]


BEFORE_THE_DECISION = ["prepared", "stop", "quiesced", "copied_out", "handed_over", "frozen", "drained", "staged"]
BEFORE_IT_RUNS = ["room", "created", "refilled", "back", "mapped"]


@pytest.mark.parametrize("step", BEFORE_THE_DECISION)
def test_a_checkpoint_that_fails_leaves_the_job_running(ascend: Machine, step: str) -> None:
    job = told(ascend, "alloc 3 300000", "handles 2")
    before = job.ask("?")
    ascend.inject(f"checkpoint.{step} fail")
    assert code_of(ascend.gcr("checkpoint", "llm")) == (4, "injected_fault")
    assert job.ask("?") == before
    ascend.inject()
    swap(ascend)
    assert job.ask("?") == before


@pytest.mark.parametrize("step", BEFORE_IT_RUNS)
def test_a_restore_that_fails_leaves_the_job_suspended(ascend: Machine, step: str) -> None:
    job = told(ascend, "alloc 3 300000", "handles 2")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    ascend.inject(f"restore.{step} fail")
    failed = ascend.gcr("restore", "llm")
    assert failed.code == 4, failed.body
    assert ascend.job("llm")["state"] == "suspended"  # type: ignore[index]
    ascend.inject()
    assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before


def test_a_restore_that_the_runtime_refuses_leaves_the_job_suspended(ascend: Machine) -> None:
    ascend.extra["GCR_CONTROL_S"] = "1"  # so long a refused step is tried again
    job = told(ascend, "alloc 3 300000")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    (ascend.simulated / "faults").write_text("aclrtSnapShotProcessRestore:*:fail=507909\n")
    failed = ascend.gcr("restore", "llm")
    assert failed.code == 4, failed.body
    assert ascend.job("llm")["state"] == "suspended"  # type: ignore[index]
    (ascend.simulated / "faults").write_text("")
    assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before


@pytest.mark.parametrize("step", ["copied_out", "handed_over", "frozen", "decided"])
def test_a_daemon_that_dies_in_a_checkpoint_loses_nothing(ascend: Machine, step: str) -> None:
    job = told(ascend, "alloc 3 300000", "handles 2")
    before = job.ask("?")
    ascend.inject(f"checkpoint.{step} die")
    assert ascend.gcr("checkpoint", "llm").code != 0
    ascend.inject()
    state = ascend.until_state("llm", "running", "suspended", "data_suspended")
    if state != "running":
        assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before
    swap(ascend)
    assert job.ask("?") == before


def test_a_suspended_job_outlives_the_daemon_and_its_worker(ascend: Machine) -> None:
    job = told(ascend, "alloc 3 300000", "handles 2")
    before = job.ask("?")
    assert ascend.gcr("checkpoint", "llm").code == 0
    for pid in (ascend.daemon(), *ascend.children("gcr.worker")):
        os.kill(pid, signal.SIGKILL)
    ascend.until_state("llm", "suspended")
    assert ascend.gcr("restore", "llm").code == 0
    assert job.ask("?") == before
