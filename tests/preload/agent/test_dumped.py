"""CRIU saves a suspended process, ends it, and brings it back. Its agent finds the daemon, and the program goes on."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from agent import Agent
from conftest import PATIENCE, ROOT, SANITIZE, Machine, Puppet
from packets import FROZEN, HANDED_OVER, STAGED
from patience import wait_for
from test_copyout import pieces_of, segment

sys.path.insert(0, str(ROOT / "tests/native/sim"))

from dumps import Dumps, Refused, skip_without_criu
from simulated import Machine as Control
from simulated import listener_of

MiB = 1 << 20
ARENA = 64 * MiB  # what is staged; CRIU would store it
SOON = 10.0  # seconds: 10 ms where the machine is not busy
CONTROL = """
    ck(cu.cuInit(0))
    for step in {steps}: ck(getattr(cu, 'cuCheckpointProcess' + step)({pid}, None))
"""


class Filed(Puppet):
    """A puppet with a named pipe for its lines and a file for its answers: CRIU knows the other end of neither."""

    def __init__(self, machine: Machine) -> None:
        (machine.folder / "sim").mkdir()
        os.mkfifo(machine.folder / "lines")
        self._lines = os.open(machine.folder / "lines", os.O_RDWR | os.O_CLOEXEC)
        self._answers = machine.folder / "answers"
        self._heard = 0
        with self._answers.open("ab") as answers:
            self.process = subprocess.Popen(
                [str(machine.build.puppet)],
                stdin=self._lines,
                stdout=answers,
                stderr=answers,
                env=machine.environment(preload=True, socket=True),
                start_new_session=True,
                text=True,
            )
        machine.puppets.append(self)

    def tell(self, line: str, patience: float = PATIENCE) -> str:
        os.write(self._lines, f"{line}\n".encode())
        end = time.monotonic() + patience
        while len(said := self._answers.read_text().splitlines()) == self._heard:
            assert time.monotonic() < end, f"no answer to {line!r} within {patience} s"
            time.sleep(0.005)
        self._heard += 1
        return said[self._heard - 1]

    def close(self) -> None:
        os.close(self._lines)


@pytest.fixture
def filed(machine: Machine) -> Iterator[tuple[Filed, Agent]]:
    skip_without_criu()
    if SANITIZE:
        pytest.skip("a sanitizer's shadow memory is terabytes of address space")
    daemon = machine.listen()
    puppet = Filed(machine)
    puppet.must("init", "primary p 0", machine.kernels(), "stream s")
    yield puppet, daemon.accept()
    puppet.close()


@pytest.fixture
def dumps(machine: Machine) -> Iterator[Dumps]:
    made = Dumps(machine.folder)
    yield made
    made.close()


def control(machine: Machine, puppet: Puppet, *steps: str) -> None:
    """Another process drives the driver's checkpoint of this one."""
    program = CONTROL.format(steps=steps, pid=puppet.process.pid)
    Control(machine.folder).run(program, GCR_SIM_STATE=str(machine.folder / "sim"))


def mark_of(machine: Machine, puppet: Puppet) -> Path:
    return machine.folder / f"socket.away.{'ab' * 20}.{puppet.process.pid}"


def suspend(machine: Machine, puppet: Puppet, agent: Agent) -> None:
    agent.take()
    leave_the_device(machine, puppet, agent)


def leave_the_device(machine: Machine, puppet: Puppet, agent: Agent) -> None:
    agent.ask("freeze")
    control(machine, puppet, "Lock", "Checkpoint")
    arena = os.memfd_create("gcr-arena", os.MFD_CLOEXEC)
    for at in range(0, ARENA, MiB):
        os.pwrite(arena, b"\1" * MiB, at)
    agent.stage([arena])
    os.close(arena)


def leave(machine: Machine, puppet: Puppet, agent: Agent) -> dict[int, int]:
    """Returns what the agent had exported, once its connection has ended."""
    mark_of(machine, puppet).touch()
    agent.ask("leave")
    with pytest.raises(EOFError):
        agent.reply("leave", 0)
    held, agent.custody.held = agent.custody.held, {}
    return held


def dump_and_restore(machine: Machine, puppet: Puppet, dumps: Dumps) -> None:
    dumps.save(puppet.process.pid)
    puppet.process.wait(PATIENCE)
    assert sum(file.stat().st_size for file in dumps.images.iterdir()) < ARENA
    mark_of(machine, puppet).unlink()
    dumps.bring_back()


def come_back(machine: Machine, puppet: Puppet) -> Agent:
    agent = machine.daemon.accept()
    control(machine, puppet, "Restore", "Unlock")
    agent.ask("thaw")
    return agent


def generations(machine: Machine, puppet: Puppet, agent: Agent, dumps: Dumps, count: int) -> Agent:
    for _ in range(count):
        suspend(machine, puppet, agent)
        held = leave(machine, puppet, agent)
        dump_and_restore(machine, puppet, dumps)
        agent = come_back(machine, puppet)
        agent.custody.held = held
        agent.bring_back()
    return agent


def test_it_comes_back_as_it_was_and_goes_on(machine, filed, dumps):
    puppet, agent = filed
    puppet.must("alloc a 0x300000", "alloc b 4096", "create h 0x400000", "reserve v 0x800000", "map v 0 0x400000 h")
    puppet.must("access v 0 0x400000 0 3", "fill a 1 s", "fill b 2 s", "sync")
    agent.cycle()
    agent.take()
    puppet.must("thread t alloc c 0x200000")  # waits at the gate, through it all
    leave_the_device(machine, puppet, agent)
    held = leave(machine, puppet, agent)
    dump_and_restore(machine, puppet, dumps)
    again = come_back(machine, puppet)
    hello = again.hello
    assert (hello.phase, hello.transaction, hello.generation) == (HANDED_OVER, 7, 1)
    assert (hello.pid, hello.token, hello.job) == (puppet.process.pid, agent.hello.token, b"llm")
    assert hello.flags & (FROZEN | STAGED) == FROZEN
    assert puppet.tell("done t") == "running"
    again.custody.held = held
    again.bring_back()
    puppet.must("check a 1", "check b 2")
    assert puppet.tell("getaccess v 0 0") == "ok 3"
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    puppet.must("fill c 3 s", "sync", "check c 3", "stream u", "fill a 4 u", "sync", "check a 4")
    assert again.cycle()[0] == 4
    puppet.must("check c 3", "free a", "free b", "free c", "unmap v 0 0x400000", "release h")


def test_three_generations(machine, filed, dumps):
    puppet, agent = filed
    puppet.must("alloc a 0x300000", "fill a 1", "sync")
    agent = generations(machine, puppet, agent, dumps, 3)
    puppet.must("check a 1", "alloc b 0x200000", "fill b 2", "sync")
    assert agent.cycle()[0] == 2
    puppet.must("check a 1", "check b 2")


def test_its_memory_is_made_anew_from_the_bytes_that_were_kept(machine, filed, dumps):
    """The device has nothing of it meanwhile."""
    puppet, agent = filed
    puppet.must("alloc a 0x300000", "alloc b 4096", "fill a 1 s", "fill b 2 s", "sync")
    handles = agent.export()
    agent.quiesce()
    pieces, count = pieces_of(handles, 4 * MiB)
    fds = [segment(4 * MiB) for _ in range(count)]
    agent.copy("copy_out", pieces, fds)
    agent.count("hand_over")
    agent.custody.drop()
    leave_the_device(machine, puppet, agent)
    leave(machine, puppet, agent)
    dump_and_restore(machine, puppet, dumps)
    assert Control(machine.folder).run(USED, GCR_SIM_STATE=str(machine.folder / "sim")) == ["0"]
    again = come_back(machine, puppet)
    again.create([handle.id for handle in handles])
    again.copy("copy_in", pieces, fds)
    again.count("map")
    again.ask("resume")
    for fd in fds:
        os.close(fd)
    puppet.must("check a 1", "check b 2", "fill a 3", "sync", "check a 3")
    assert again.cycle()[0] == 2


USED = """
    import pynvml
    pynvml.nvmlInit()
    say(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
"""


@pytest.mark.parametrize("leaves", [False, True])
def test_a_dump_that_fails_leaves_a_process_that_goes_on(machine, filed, dumps, leaves):
    """The agent's own connection is in the way, or, once the agent has left, one that another process made."""
    puppet, agent = filed
    puppet.must("alloc a 0x300000", "fill a 1", "sync")
    suspend(machine, puppet, agent)
    held = leave(machine, puppet, agent) if leaves else agent.custody.held
    with visitor(puppet.process.pid) if leaves else nullcontext(), pytest.raises(Refused, match="unix"):
        dumps.save(puppet.process.pid)
    mark_of(machine, puppet).unlink(missing_ok=True)
    again = machine.daemon.accept(SOON) if leaves else agent
    control(machine, puppet, "Restore", "Unlock")
    again.ask("thaw")
    again.custody.held = held
    again.bring_back()
    puppet.must("check a 1")


@contextmanager
def visitor(pid: int) -> Iterator[None]:
    """A connection to the driver's service in the process, which asks for nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as talk:
        talk.connect(listener_of(pid))
        yield
