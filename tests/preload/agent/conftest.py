"""The whole shim over the simulated driver, with a daemon that shares no code with it.

Programs run bare and preloaded, each in a process of its own; every wait has a deadline, a hang is a failure.
GCR_TEST_BUILD: where the library is. GCR_TEST_SANITIZE (thread, or address,undefined): that build is a sanitized one;
the program is sanitized as well and linked against it in front of the driver, since a sanitizer must come first.
"""

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))

from agent import Agent  # noqa: E402
from oracle import Daemon  # noqa: E402

SANITIZE = os.environ.get("GCR_TEST_SANITIZE", "")
PATIENCE = 60.0 if SANITIZE else 30.0
MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class Build:
    shim: Path
    driver: Path  # folder of the simulated libcuda.so.1
    puppet: Path


def built() -> tuple[Path, Path]:
    """The shim and the folder of the simulated driver: of GCR_TEST_BUILD, else of the installed package."""
    named = os.environ.get("GCR_TEST_BUILD")
    if named:
        return Path(named) / "libgcr_shim.so", Path(named) / "sim/nvidia"
    from gcr.native import shim_path, sim_dir

    return shim_path(), sim_dir("nvidia")


@pytest.fixture(scope="session")
def build(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Build:
    shim, driver = built()
    folder = made_once("puppet", lambda folder: compile_puppet(folder / "puppet", shim, driver))
    return Build(shim, driver, folder / "puppet")


def compile_puppet(puppet: Path, shim: Path, driver: Path) -> None:
    compiler = os.environ.get("CXX", "c++")
    includes = [f"-I{ROOT / 'shim/src'}", f"-I{ROOT / 'shim'}"]
    sources = sorted((HERE / "programs").glob("*.cpp"))
    # In one: else the compiler reads the standard library's headers for each.
    text = "".join(f'#include "{source}"\n' for source in sources)
    linked = ["-Wl,--no-as-needed", str(shim), f"-fsanitize={SANITIZE}", "-g"] if SANITIZE else []
    inputs = ["-x", "c++", "-", "-x", "none", *linked, str(driver / "libcuda.so.1")]
    command = [compiler, "-std=c++17", "-O1", *includes, *inputs, "-pthread", "-o", str(puppet)]
    subprocess.run(command, input=text, text=True, check=True, timeout=110)


@dataclass
class Puppet:
    """A running puppet: one line in, one line out."""

    process: "subprocess.Popen[str]"

    def tell(self, line: str, patience: float = PATIENCE) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], patience)
        assert ready, f"no answer to {line!r} within {patience} s"
        answer = self.process.stdout.readline()
        assert answer, f"died of {line!r}: {self.process.wait(5)}"
        return answer.strip()

    def script(self, lines: Sequence[str]) -> list[str]:
        return [self.tell(line) for line in lines]

    def must(self, *lines: str) -> None:
        for line in lines:
            answer = self.tell(line)
            assert answer.startswith("ok") or answer == "right", f"{line!r} → {answer}"

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@dataclass
class Machine:
    """A simulated machine and what runs on it."""

    build: Build
    folder: Path
    memory: int = 512 * MiB
    settings: dict[str, str] = field(default_factory=dict)
    puppets: list[Puppet] = field(default_factory=list)
    daemon: Daemon | None = None

    def listen(self) -> Daemon:
        self.daemon = Daemon(self.folder / "socket")
        return self.daemon

    def environment(self, preload: bool, socket: bool) -> dict[str, str]:
        ours = {
            "GCR_SIM_STATE": str(self.folder / "sim"),
            "GCR_SIM_MEMORY": str(self.memory),
            "LD_LIBRARY_PATH": f"{self.build.driver}:{self.build.shim.parent}",
            **self.settings,
        }
        if preload and not SANITIZE:
            ours["LD_PRELOAD"] = str(self.build.shim)
        if socket:
            ours |= {"GCR_SOCKET": str(self.folder / "socket"), "GCR_JOB": "llm", "GCR_TOKEN": "ab" * 20}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GCR_")}
        return kept | ours

    def puppet(self, preload: bool = True, socket: bool = True) -> Puppet:
        (self.folder / "sim").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [str(self.build.puppet)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(preload, socket and preload),
        )
        puppet = Puppet(process)
        self.puppets.append(puppet)
        return puppet

    def kernels(self) -> str:
        return f"kernels {self.build.driver / 'kernels.so'}"

    def ready(self, **how: bool) -> Puppet:
        """A puppet with a context `p` on device 0, a stream `s` and the kernels."""
        puppet = self.puppet(**how)
        puppet.must("init", "primary p 0", self.kernels(), "stream s")
        return puppet

    def target(self) -> tuple[Puppet, Agent]:
        """A ready puppet under a daemon."""
        daemon = self.daemon or self.listen()
        puppet = self.ready()
        agent = daemon.accept()
        agent.status()  # so it has looked at its welcome, and closed what came with it
        return puppet, agent

    def both(self, lines: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the output of a script bare, and preloaded without a daemon."""
        answers = []
        for preload in (False, True):
            shutil.rmtree(self.folder / "sim", ignore_errors=True)
            puppet = self.ready(preload=preload, socket=False)
            answers.append(puppet.script(lines))
            assert puppet.end() == 0
        return answers[0], answers[1]

    def close(self) -> None:
        if self.daemon:
            self.daemon.close()
        for puppet in self.puppets:
            puppet.process.kill()
            puppet.process.wait(PATIENCE)
            for stream in (puppet.process.stdin, puppet.process.stdout):
                if stream and not stream.closed:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        continue  # what was never sent goes down with the process


@pytest.fixture
def machine(build: Build, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(build, tmp_path)
    yield made
    made.close()


@pytest.fixture
def target(machine: Machine) -> tuple[Puppet, Agent]:
    return machine.target()


Same = Callable[[Sequence[str]], None]


@pytest.fixture
def same(machine: Machine) -> Same:
    """Runs a script bare and preloaded; both must say the same."""

    def compare(lines: Sequence[str]) -> None:
        bare, shimmed = machine.both(lines)
        assert list(zip(lines, shimmed, strict=True)) == list(zip(lines, bare, strict=True))

    return compare
