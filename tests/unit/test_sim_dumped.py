"""A process that the simulated driver checkpointed is saved by CRIU, comes back, and goes on."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from dumps import Dumps, skip_without_criu
from simulated import DEADLINE, Machine, MiB

CHECKPOINTED = "2"

# Does what the lines of a file say, and answers in its output: neither is a pipe, whose other end CRIU could not save.
VICTIM = """
    use()
    k = Kernels()
    size = 4 * MiB
    stream, event = ck(cu.cuStreamCreate(1)), ck(cu.cuEventCreate(0))
    plain, out = int(ck(cu.cuMemAlloc(size))), int(ck(cu.cuMemAlloc(8)))
    virtual = mapped(create(size, exportable=False), size)

    def fill(address, value):
        k.launch('fill', (U64, address), (U64, size // 8), (U64, value), stream=stream)
        ck(cu.cuEventRecord(event, stream)); ck(cu.cuEventSynchronize(event))

    def digest(address):
        k.launch('digest', (U64, address), (U64, size // 8), (U64, out), stream=stream)
        ck(cu.cuStreamSynchronize(stream))
        return words(read(out, 8))[0]

    def lines():
        at = 0
        while True:
            there = open('{orders}').read().splitlines()
            yield from there[at:]
            at = len(there)
            time.sleep(0.01)

    for order in lines():
        if order == 'fill': fill(plain, 3); fill(virtual, 4); say('filled')
        if order == 'digests': say(digest(plain), digest(virtual))
        if order == 'grow': say(code(cu.cuMemAlloc(size)))
        if order == 'renew': stream, event = ck(cu.cuStreamCreate(0)), ck(cu.cuEventCreate(0)); say('renewed')
"""
CALLER = """
    ck(cu.cuInit(0))
    lock = lambda: code(cu.cuCheckpointProcessLock({pid}, None))
    unlock = lambda: code(cu.cuCheckpointProcessUnlock({pid}, None))
    checkpoint = lambda: code(cu.cuCheckpointProcessCheckpoint({pid}, None))
    restore = lambda: code(cu.cuCheckpointProcessRestore({pid}, None))
    state = lambda: int(cu.cuCheckpointProcessGetState({pid})[1])
"""
COUNTED = """
    import pynvml
    pynvml.nvmlInit()
    there = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    say(*[process.usedGpuMemory for process in there if process.pid == {pid}])
"""


@dataclass
class Victim:
    machine: Machine
    folder: Path
    process: "subprocess.Popen[bytes]"
    dumps: Dumps
    heard: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, order: str) -> None:
        with (self.folder / "orders").open("a") as orders:
            orders.write(order + "\n")

    def hear(self) -> str:
        end = time.monotonic() + DEADLINE
        while len(said := (self.folder / "out").read_text().splitlines()) == self.heard:
            assert time.monotonic() < end, "no answer before the deadline"
            time.sleep(0.01)
        self.heard += 1
        return said[self.heard - 1]

    def ask(self, order: str) -> str:
        self.tell(order)
        return self.hear()

    def act(self, what: str) -> str:
        """Returns what a caller of the checkpoint functions says."""
        return " ".join(self.machine.run(CALLER.format(pid=self.pid) + f"    say({what})"))

    def counted(self) -> int:
        """Returns the bytes that the device counts for the process."""
        return int(*self.machine.run(COUNTED.format(pid=self.pid)))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    skip_without_criu()
    machine = Machine(tmp_path)
    (tmp_path / "orders").touch()
    with (tmp_path / "out").open("ab") as out:
        process = subprocess.Popen(
            machine.command(VICTIM.format(orders=tmp_path / "orders")),
            env=machine.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=tmp_path,
        )
    dumps = Dumps(tmp_path)
    yield Victim(machine, tmp_path, process, dumps)
    process.kill()
    process.wait(DEADLINE)
    dumps.close()


def test_a_checkpointed_process_survives_criu(victim: Victim) -> None:
    assert victim.ask("fill") == "filled"
    before, held = victim.ask("digests"), victim.counted()
    assert held == victim.machine.used()
    assert victim.act("lock(), checkpoint()") == "0 0"
    victim.tell("grow")  # waits in the driver, through it all
    victim.dumps.save(victim.pid)
    victim.process.wait(DEADLINE)
    assert victim.machine.used() == 0
    victim.dumps.bring_back()
    assert victim.act("state(), restore(), unlock()") == f"{CHECKPOINTED} 0 0"
    assert victim.hear() == "0"
    assert victim.counted() == victim.machine.used() == held + 4 * MiB
    assert victim.ask("digests") == before
    assert victim.ask("renew") == "renewed"
    assert (victim.ask("fill"), victim.ask("digests")) == ("filled", before)


def test_it_survives_again_and_again(victim: Victim) -> None:
    assert victim.ask("fill") == "filled"
    before = victim.ask("digests")
    for _ in range(3):
        assert victim.act("lock(), checkpoint()") == "0 0"
        victim.dumps.save(victim.pid)
        victim.process.wait(DEADLINE)
        victim.dumps.bring_back()
        assert victim.act("restore(), unlock()") == "0 0"
        assert victim.ask("digests") == before
    assert victim.counted() == victim.machine.used()
