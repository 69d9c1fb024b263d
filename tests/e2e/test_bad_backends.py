"""Backends, runtimes and drivers that are missing, too old or broken: typed refusals, and no program is touched."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm
from machine import ROOT, VICTIMS, Answer, Machine, Victim

from gcr.native import sim_dir

sys.path.insert(0, str(VICTIMS))

import hip_python

ALLOC = str(VICTIMS / "alloc_victim.py")
ACL_TOLD = str(VICTIMS / "acl_told.py")

Make = Callable[..., Machine]


def path(*first: object) -> str:
    return os.pathsep.join([*map(str, first), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """make(vendor, **environment): a machine with simulated devices of that vendor."""
    made: list[Machine] = []

    def make_(vendor: str, **more: str) -> Machine:
        (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)
        kernels = str(sim_dir(vendor) / "kernels.so")
        made.append(Machine(tmp_path, vendor=vendor, extra={"GCR_SIM_KERNELS": kernels, **more}))
        return made[-1]

    yield make_
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def hip_victim(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A program that uses HIP without hip-python."""
    program = tmp_path_factory.mktemp("hip") / "hip_victim"
    kernels = f'-DKERNELS="{sim_dir("amd") / "kernels.so"}"'
    words = ["cc", "-Wall", "-O1", f"-I{ROOT / 'shim'}", kernels, "-o", program, VICTIMS / "hip_victim.c"]
    libraries = [f"-L{sim_dir('amd')}", "-l:libamdhip64.so.7", "-lpthread"]
    subprocess.run([*map(str, words), *libraries], check=True, timeout=60)
    return (str(program), "--interactive", "2", "20")


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.code, answer.body["error"]["code"]


def refused(machine: Machine, job: Victim, code: str, *options: str) -> str:
    """A checkpoint that is refused and leaves the program running; what the refusal says, with its hint."""
    answer = machine.gcr("checkpoint", job.name, *options)
    assert code_of(answer) == (3, code), answer.body
    assert machine.job(job.name)["state"] == "running"  # type: ignore[index]
    return f"{answer.body['error']['message']}; {answer.body['error']['hint']}"


# ---- a runtime that is missing or too old --------------------------------------------------------------------------


def test_without_hip_python_a_job_on_amd_is_refused_and_runs_on(make: Make, hip_victim: tuple[str, ...]) -> None:
    machine = make("amd")
    job = machine.run("llm", *hip_victim)
    told = refused(machine, job, "backend_missing", "--data-only")
    assert "hip-python cannot be imported" in told
    assert "pip install" in told
    assert job.ask().startswith("digest")


def test_a_rocm_that_is_too_old_moves_nothing_and_the_program_runs_on(make: Make, hip_victim: tuple[str, ...]) -> None:
    machine = make("amd", GCR_SIM_HIP_VERSION="5.3", PYTHONPATH=path(hip_python.folder("10")))
    job = machine.run("llm", *hip_victim)
    before = job.ask()
    for _ in range(2):
        assert "too old" in refused(machine, job, "unsupported_state", "--data-only")
    assert before.startswith("digest")
    assert job.ask().startswith("digest")


def test_a_cann_that_is_too_old_cannot_save_the_state_and_the_program_runs_on(make: Make) -> None:
    machine = make("ascend", GCR_SIM_CANN_VERSION="8.0", PYTHONPATH=path(VICTIMS))
    job = machine.run("llm", sys.executable, ACL_TOLD)
    assert job.ask("alloc 1 300000") == "ok"
    before = job.ask("?")
    assert "too old" in refused(machine, job, "unsupported_state")
    assert job.ask("?") == before


# ---- a process that gcr did not start ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--data-only",)], ids=["all of it", "data only"])
def test_a_foreign_process_on_amd_is_refused_and_runs_on(
    make: Make, hip_victim: tuple[str, ...], options: tuple[str, ...]
) -> None:
    machine = make("amd", PYTHONPATH=path(hip_python.folder("10")))
    other = machine.begin_bare(*hip_victim)
    before = other.ask()
    answer = machine.gcr("--backend", "amd", "checkpoint", str(other.supervisor.pid), *options)
    assert code_of(answer) == (3, "unsupported_state"), answer.body
    assert "gcr run" in f"{answer.body['error']['message']}; {answer.body['error']['hint']}"
    assert machine.ask("ps").body["jobs"] == []
    assert before.startswith("digest")
    assert other.ask().startswith("digest")


# ---- an export that fails half way ---------------------------------------------------------------------------------

EXPORTS = {"nvidia": "cuMemExportToShareableHandle", "amd": "hipMemExportToShareableHandle"}


@pytest.mark.parametrize("vendor", EXPORTS)
def test_an_export_that_fails_half_way_is_taken_back(make: Make, hip_victim: tuple[str, ...], vendor: str) -> None:
    options = ("--data-only",) if vendor == "amd" else ()
    machine = make(vendor, PYTHONPATH=path(hip_python.folder("10")))
    program = hip_victim if vendor == "amd" else (sys.executable, ALLOC, "--interactive")
    job = machine.run("llm", *program)
    bare = machine.begin_bare(*program)
    answers = [job.ask()]
    faults = machine.simulated / "faults"
    faults.write_text(f"{EXPORTS[vendor]}@{machine.target('llm')}:2+:fail=304\n")
    failed = machine.gcr("checkpoint", "llm", *options)
    assert code_of(failed) == (4, "driver_error"), failed.body
    assert EXPORTS[vendor] in failed.body["error"]["message"]
    assert machine.job("llm")["state"] == "running"  # type: ignore[index]
    answers.append(job.ask())
    faults.write_text("")
    assert machine.gcr("checkpoint", "llm", *options).code == 0
    assert machine.gcr("restore", "llm").code == 0
    answers.append(job.ask())
    assert [bare.ask() for _ in answers] == answers


# ---- plugins -------------------------------------------------------------------------------------------------------

STRANGER = """
from gcr.hookspecs import hookimpl
from gcr_nvidia import NvidiaBackend

def mistake(*_arguments):
    raise KeyError("the stranger's own mistake")

class Good(NvidiaBackend):
    name = "stranger"
    interface = {interface}

class Raising(Good):
    probe = devices = drain = control = shim = simulator = mistake

@hookimpl
def gcr_backends():
    return [{kind}()]
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of plugins, one for all tests: its programs are forked (tests/e2e/warm.py)."""
    folder = tmp_path_factory.mktemp("plugins")
    warm.expect(path(folder), "nvidia")
    return folder


@dataclass
class Strangers:
    """Modules that are plugins, besides NVIDIA's."""

    make: Make
    folder: Path

    def machine(self, **modules: tuple[str, int]) -> Machine:
        """machine(first=("Good", 1), …): a machine with these."""
        for name, (kind, interface) in modules.items():
            self.write(name, STRANGER.format(kind=kind, interface=interface))
        return self.make("nvidia", PYTHONPATH=path(self.folder), GCR_PLUGINS=",".join(["gcr_nvidia", *modules]))

    def write(self, name: str, text: str) -> None:
        """Writes a module, as one of another time: Python takes one of the same second and size for the one before."""
        file = self.folder / f"{name}.py"
        file.write_text(text)
        os.utime(file, times=(next(TIMES),) * 2)


TIMES = itertools.count(1)


@pytest.fixture
def strangers(make: Make, plugins: Path) -> Strangers:
    return Strangers(make, plugins)


def plays(machine: Machine, vendor: str, name: str) -> None:
    """A job of that vendor goes and comes back, bit for bit."""
    machine.vendor = vendor
    job = machine.run(name, sys.executable, ALLOC, "--interactive")
    before = job.ask()
    assert machine.gcr("checkpoint", name).code == 0
    assert machine.gcr("restore", name).code == 0
    assert job.ask() == before


def test_of_two_plugins_of_one_name_the_first_serves_and_the_second_is_listed(strangers: Strangers) -> None:
    machine = strangers.machine(first=("Good", 1), second=("Raising", 1))
    plays(machine, "stranger", "one")
    answer = machine.gcr("backends")
    (broken,) = [row for row in answer.body["backends"] if row["broken"]]
    assert (broken["name"], broken["origin"], answer.stderr) == ("second", "GCR_PLUGINS=second", "")
    assert "already there, from GCR_PLUGINS=first" in broken["broken"]
    plays(machine, "nvidia", "other")


def starts_nothing(machine: Machine, mark: Path) -> str:
    """Returns the message of `gcr run` when it refuses to start a program for the stranger."""
    for options in (("--backend", "stranger", "run"), ("run", "--simulate", "stranger")):
        answer = machine.gcr(*options, "--", "touch", str(mark))
        assert code_of(answer) == (125, "backend_missing"), answer.body
        assert not mark.exists()
    return str(answer.body["error"]["message"])


def test_a_backend_that_raises_in_every_method_starts_nothing_and_harms_no_other(
    strangers: Strangers, tmp_path: Path
) -> None:
    machine = strangers.machine(stranger=("Raising", 1))
    assert "the stranger's own mistake" in starts_nothing(machine, tmp_path / "mark")
    assert code_of(machine.gcr("--backend", "stranger", "devices")) == (3, "backend_missing")
    assert machine.gcr("doctor").code == 0
    plays(machine, "nvidia", "other")


@pytest.mark.parametrize(("interface", "says"), [(0, "upgrade the plugin"), (2, "upgrade gcr")])
def test_a_plugin_of_another_interface_version_starts_nothing_and_harms_no_other(
    strangers: Strangers, tmp_path: Path, interface: int, says: str
) -> None:
    machine = strangers.machine(stranger=("Good", interface))
    assert says in starts_nothing(machine, tmp_path / "mark")
    assert says in machine.gcr("--backend", "stranger", "devices").body["error"]["message"]
    plays(machine, "nvidia", "other")


def test_a_plugin_that_breaks_under_a_running_job_is_a_refusal_and_the_job_runs_on(strangers: Strangers) -> None:
    """It was upgraded, or removed, between `gcr run` and `gcr checkpoint`."""
    good = STRANGER.format(kind="Good", interface=1)
    raising, too_new = STRANGER.format(kind="Raising", interface=1), STRANGER.format(kind="Good", interface=2)
    machine = strangers.machine(stranger=("Good", 1))
    machine.vendor = "stranger"
    job = machine.run("llm", sys.executable, ALLOC, "--interactive")
    before = job.ask()
    for number, broken in enumerate((raising, too_new, "raise ImportError('removed')")):
        strangers.write("stranger", broken)
        refused(machine, job, "backend_missing")
        assert job.ask() == before
        plays(machine, "nvidia", f"other-{number}")
        strangers.write("stranger", good)
        assert machine.gcr("daemon", "stop").code == 0  # what was loaded goes with the processes that loaded it
        machine.targets("llm")
    assert machine.gcr("checkpoint", "llm").code == 0
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before
