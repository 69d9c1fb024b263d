"""Memory between processes by HIP's calls: tickets, in both ways of giving a descriptor, and all else as bare."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "agent")]

from agent import Agent  # noqa: E402
from oracle import Daemon  # noqa: E402
from sharing_swap import swap  # noqa: E402
from test_hip import SECONDS, environment, linked  # noqa: E402

from gcr.native import shim_path  # noqa: E402

SIZE = 4 << 20
TICKET = "/memfd:gcr-ticket (deleted)"
DONE, INVALID = "0 last 0", "1 last 1"
SHAREABLE_EXPORT = 8
MAKE = ("create h", "map w h", "fill w 1", "export f h")
pytestmark = pytest.mark.parametrize("version", ["7.0", "7.2"])  # a descriptor's address, its value


@dataclass
class Program:
    process: "subprocess.Popen[str]"

    def tell(self, line: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def must(self, *lines: str) -> None:
        for line in lines:
            assert self.tell(line) == DONE, line

    def number(self, line: str) -> int:
        return int(self.tell(line).split()[0])

    def file(self, name: str) -> str:
        """Returns what a descriptor of the program's is."""
        return str(Path(f"/proc/{self.process.pid}/fd/{self.number(f'numberof {name}')}").readlink())

    def take(self, other: "Program", name: str = "f") -> None:
        """Takes another's descriptor, as by a socket."""
        self.must(f"fetch {name} {other.process.pid} {other.number(f'numberof {name}')}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


@dataclass
class Machine:
    """`daemon`: of the programs that `target` starts."""

    program: Path
    env: dict[str, str]
    daemon: Daemon
    started: list[Program]

    def start(self, **more: str) -> Program:
        pipe = subprocess.PIPE
        process = subprocess.Popen([self.program], env={**self.env, **more}, stdin=pipe, stdout=pipe, text=True)
        self.started.append(Program(process))
        return self.started[-1]

    def target(self, **more: str) -> tuple[Program, Agent]:
        made = self.start(LD_PRELOAD=str(shim_path()), GCR_SOCKET=str(self.daemon.path), **more)
        made.must("create x", "release x")  # its first call
        agent = self.daemon.accept()
        agent.status()
        return made, agent


@pytest.fixture(scope="module")
def program(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return made_once("hip-shares", lambda folder: linked(folder, "shares.c")) / "shares"


@pytest.fixture
def machine(tmp_path: Path, program: Path, version: str) -> Iterator[Machine]:
    env = environment(tmp_path, GCR_SIM_HIP_VERSION=version)
    made = Machine(program, env, Daemon(tmp_path / "socket"), [])
    yield made
    for each in made.started:
        each.end()
    made.daemon.close()


def test_an_importer_has_the_owners_memory_and_the_ticket_is_no_file_of_the_runtimes(machine: Machine) -> None:
    owner, its_agent = machine.target()
    importer, importers_agent = machine.target()
    owner.must(*MAKE)
    assert owner.file("f") == TICKET
    importer.take(owner)
    owner.must("close f")
    importer.must("import h f", "close f", "map w h", "check w 1", "fill w 2")
    owner.must("check w 2")
    name, (lent,) = its_agent.shared()
    importers_name, (foreign,) = importers_agent.shared()
    assert (lent.process, lent.size, lent.pid, lent.foreign) == (importers_name, SIZE, importer.process.pid, False)
    assert (foreign.process, foreign.there, foreign.size, foreign.foreign) == (name, lent.id, SIZE, True)
    assert its_agent.status().uncovered == importers_agent.status().uncovered == {}


def test_it_goes_and_comes_back_for_both_and_is_lent_again(machine: Machine) -> None:
    owner, its_agent = machine.target()
    importer, importers_agent = machine.target()
    owner.must(*MAKE)
    importer.take(owner)
    importer.must("import h f", "map w h")
    for seed in (1, 3):
        swap(its_agent, importers_agent)
        importer.must(f"check w {seed}", f"fill w {seed + 1}")
        owner.must(f"check w {seed + 1}", f"fill w {seed + 2}")
    third, _ = machine.target()
    owner.must("export g h")  # the runtime makes no descriptor of what came back: the daemon has it
    third.take(owner, "g")
    third.must("import h g", "map w h", "check w 5")


def sharing(machine: Machine, start: Callable[[], Program]) -> list[str]:
    """Returns the answers of two processes, one of which has memory of the other."""
    owner, importer = start(), start()
    said = [owner.tell(line) for line in MAKE]
    importer.take(owner)
    for who, lines in (
        (importer, ("import h f", "import i f", "same h i", "release i", "map w h", "release h", "import h f")),
        (importer, ("import i f", "same h i", "check w 1", "export g h", "fill w 2", "unmap w", "release h")),
        (owner, ("check w 2", "import o f", "release o", "private p", "export g p", "release h")),
        (importer, ("release i", "import h f", "map w h", "check w 2", "unmap w", "release h", "close f")),
        (owner, ("unmap w", "close f")),
    ):
        said += [f"{line}: {who.tell(line)}" for line in lines]
    return said


def test_two_processes_are_told_what_two_bare_ones_are(machine: Machine) -> None:
    """The same memory is the same handle; what was imported is not exported."""
    bare = sharing(machine, machine.start)
    assert sum("same" in line and line.endswith("1 last 0") for line in bare) == 2
    assert f"export g h: {INVALID}" in bare
    assert sharing(machine, lambda: machine.target()[0]) == bare


def test_what_is_no_ticket_is_refused_as_bare(machine: Machine) -> None:
    lines = [line for number in (-1, 0, 1, 99, 1 << 20) for line in (f"set f {number}", "import h f")]
    lines += ["file f", "import h f", "close f", "import h f", "create h", "map w h", "fill w 3", "check w 3"]
    bare, target = machine.start(), machine.target()[0]
    bare.must("create x", "release x")
    said = [bare.tell(line) for line in lines]
    assert sum(not line.startswith("0") for line in said) == 7
    assert [target.tell(line) for line in lines] == said


def test_a_ticket_is_void_once_its_memory_is_freed_or_its_owner_ends(machine: Machine) -> None:
    owner, _ = machine.target()
    importer, agent = machine.target()
    owner.must(*MAKE)
    importer.take(owner)
    owner.must("unmap w", "release h")
    assert importer.tell("import h f") == INVALID
    owner.must("create h", "export g h")
    importer.take(owner, "g")
    owner.end()
    assert importer.tell("import h g") == INVALID
    importer.must("create h", "map w h", "fill w 4", "check w 4")
    assert agent.shared()[1] == []


def test_a_bare_importer_needs_the_runtimes_own(machine: Machine) -> None:
    owner, _ = machine.target()
    bare = machine.start()
    owner.must(*MAKE)
    bare.take(owner)
    assert bare.tell("import h f").split()[0] != "0"
    giving, agent = machine.target(GCR_SHARE="driver")
    giving.must(*MAKE)
    assert giving.file("f") != TICKET
    bare.take(giving)
    bare.must("import h f", "map w h", "check w 1")
    assert agent.status().uncovered == {SHAREABLE_EXPORT: (True, SIZE, 1)}
