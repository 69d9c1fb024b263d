"""Tests of AMD alone: both generations of its Python binding, runtimes of every release, and the device's own count.

The data leaves and comes back, the process and its context stay. Jobs of every vendor are tested elsewhere.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from machine import PATIENCE, ROOT, VICTIMS, Machine, Victim, until
from worlds import AMD, hip_environment, hip_python

from gcr.native import sim_dir

GENERATIONS = tuple(hip_python.REQUIREMENTS)
PYTHON_VICTIM = str(VICTIMS / "hip_victim.py")
MIB = 1 << 20

Make = Callable[..., Machine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """make(quirks, **environment): a machine with AMD's devices."""
    made: list[Machine] = []

    def make_(quirks: str = "", **more: str) -> Machine:
        where = replace(AMD, quirks=quirks, copies="noexport" in quirks)
        (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)
        made.append(Machine(tmp_path, vendor="amd", where=where, extra={**where.environment(), **more}))
        return made[-1]

    yield make_
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """tests/victims/hip_victim.c as a HIP compiler would link it: by versioned symbols."""
    program = tmp_path_factory.mktemp("hip") / "hip_victim"
    kernels = f'-DKERNELS="{sim_dir("amd") / "kernels.so"}"'
    words = ["cc", "-Wall", "-Werror", "-O1", f"-I{ROOT / 'shim'}", kernels, "-o", program, VICTIMS / "hip_victim.c"]
    subprocess.run(
        [*map(str, words), f"-L{sim_dir('amd')}", "-l:libamdhip64.so.7", "-lpthread"], check=True, timeout=60
    )
    return str(program)


def used(machine: Machine) -> int:
    """Bytes in use on the first device, as the kernel shows it; it lags by up to 50 ms."""
    (path, *_) = sorted((machine.simulated / "sys/bus/pci/devices").glob("*/mem_info_vram_used"))
    return int(path.read_text())


def swaps_like_a_bare_one(machine: Machine, *command: str) -> None:
    job = machine.run("llm", *command)
    answers = []
    for _ in range(2):
        machine.leave()
        machine.come_back()
        answers.append(job.ask())
    bare = machine.begin_bare(*command)
    assert [bare.ask() for _ in answers] == answers


@pytest.mark.parametrize("quirks", ["", "leak", "leak-hard", "noexport", "elsewhere"])
def test_a_linked_program_goes_and_comes_back_as_it_was(make: Make, linked: str, quirks: str) -> None:
    swaps_like_a_bare_one(make(quirks), linked, "--interactive", "4", "20")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_python_program_goes_and_comes_back_as_it_was(make: Make, generation: str) -> None:
    swaps_like_a_bare_one(make(**hip_environment(generation)), sys.executable, PYTHON_VICTIM, "--interactive")


@pytest.mark.parametrize("version", ["5.7", "6.4", "7.0"])
def test_runtimes_that_import_by_address_swap_too(make: Make, linked: str, version: str) -> None:
    swaps_like_a_bare_one(make(GCR_SIM_HIP_VERSION=version), linked, "--interactive", "2", "20")


@pytest.mark.parametrize("quirks", ["", "leak", "leak-hard", "noexport", "leak,noexport", "leak-hard,noexport"])
def test_the_device_is_free_while_the_data_is_gone(make: Make, linked: str, quirks: str) -> None:
    machine = make(quirks, GCR_SIM_CONTEXT_BYTES=str(MIB // 16))
    machine.run("llm", linked, "--interactive", "4", "20")
    before = until(lambda: used(machine), PATIENCE, "the program uses memory")
    gone = machine.leave()
    assert gone.body["bytes"] >= 8 * MIB
    left = before - gone.body["bytes"] + MIB  # contexts: the program's and a worker's
    until(lambda: used(machine) <= left, PATIENCE, "the device counts the data as gone")
    machine.come_back()
    log = (machine.folder / "state" / "gcr" / "log" / "gcrd.log").read_text()
    assert ("mapped over" in log) is ("leak" in quirks.split(","))
    assert ("addresses reserved again" in log) is ("leak-hard" in quirks)


def test_a_program_whose_address_was_taken_runs_on_when_it_is_free(make: Make, linked: str) -> None:
    """The runtime keeps memory with its address, which is given up for an instant, and another thread has it then."""
    machine = make(quirks="leak-hard")
    job = machine.run("llm", linked, "--interactive", "4", "40")
    answers = [job.ask()]
    # two for the probe; from the third on they are for the program's own addresses
    (pid,) = machine.targets("llm")
    (machine.simulated / "faults").write_text(f"hipMemAddressReserve@{pid}:3+:fail=2\n")
    failed = machine.gcr("checkpoint", "llm", "--data-only")
    assert (failed.code, failed.body["error"]["code"]) == (4, "address_taken"), failed.body
    job.tell()
    assert job.silent(0.4)
    again = machine.gcr("checkpoint", "llm", "--data-only")
    assert (again.code, again.body["error"]["code"]) == (4, "address_taken"), again.body
    (machine.simulated / "faults").write_text("")
    answers.append(job.hear())
    machine.leave()
    machine.come_back()
    answers.append(job.ask())
    bare = machine.begin_bare(linked, "--interactive", "4", "40")
    assert [bare.ask() for _ in answers] == answers


def test_a_runtime_that_keeps_memory_for_good_is_refused_untouched(make: Make, linked: str) -> None:
    machine = make(quirks="leak-hard,elsewhere")
    job = machine.run("llm", linked, "--interactive", "2", "20")
    refused = machine.gcr("checkpoint", "llm", "--data-only")
    assert (refused.code, refused.body["error"]["code"]) == (3, "unsupported_state"), refused.body
    assert machine.job("llm")["state"] == "running"  # type: ignore[index]
    assert job.ask().startswith("digest")


def test_without_criu_the_whole_device_cannot_be_given_back(make: Make, linked: str) -> None:
    machine = make(GCR_CRIU="/no/criu")
    job = machine.run("llm", linked, "--interactive", "2", "20")
    refused = machine.gcr("checkpoint", "llm")
    assert (refused.code, refused.body["error"]["code"]) == (3, "criu_unusable")
    assert "--data-only" in refused.body["error"]["hint"]
    assert machine.job("llm")["state"] == "running"  # type: ignore[index]
    assert job.ask().startswith("digest")


def test_a_job_whose_vendor_was_not_named_is_served_by_the_right_backend(make: Make, linked: str) -> None:
    """The machine has such devices, but not in its kernel: so only the choice is tested."""
    machine = make(LD_LIBRARY_PATH=str(sim_dir("amd")), GCR_SIMULATE="amd", GCR_PLUGINS="gcr_nvidia,gcr_amd")
    command = [sys.executable, "-m", "gcr", "run", "--name", "llm", "--", linked, "--interactive", "2", "20"]
    job = machine.ready(Victim("llm", machine.begin_other(*command)))
    machine.targets("llm")
    assert machine.job("llm")["backend"] == "amd"  # type: ignore[index]
    assert job.ask().startswith("digest")
