"""A job on two of a machine's three devices, which reach each other's memory (tests/victims/peers_victim.py)."""

import sys
from dataclasses import dataclass
from pathlib import Path

from machine import VICTIMS, Answer, Machine, Victim

from gcr.native import sim_dir

PEERS = str(VICTIMS / "peers_victim.py")
ENABLED = "704 704"  # what the driver answers where peer access is enabled already
COUNTED = """
import pynvml as n
n.nvmlInit()
for index in range(n.nvmlDeviceGetCount()):
    device = n.nvmlDeviceGetHandleByIndex(index)
    rows = n.nvmlDeviceGetComputeRunningProcesses(device)
    print(n.nvmlDeviceGetUUID(device), n.nvmlDeviceGetMemoryInfo(device).used, sum(
        row.usedGpuMemory for row in rows if row.pid == {pid}))
"""


def three_devices(folder: Path, **environment: str) -> Machine:
    (folder / "run").mkdir(mode=0o700)
    return Machine(folder, devices=3, extra=environment)


def command(*more: str) -> list[str]:
    return [sys.executable, PEERS, "--kernels", str(sim_dir("nvidia") / "kernels.so"), *more]


def bare(machine: Machine, steps: int) -> str:
    """Returns the program's output after so many steps without gcr."""
    return machine.bare(*command("--steps", str(steps))).strip()


@dataclass
class Job:
    """`devices`: where it is, as the driver calls its first and second one."""

    machine: Machine
    victim: Victim
    pid: int
    devices: tuple[str, str]
    said: str = ""

    @classmethod
    def start(cls, machine: Machine, *more: str, visible: str = "0,1,2") -> "Job":
        sees = ["env", f"CUDA_VISIBLE_DEVICES={visible}"]
        victim = machine.run("llm", *sees, *command("--interactive", *more))
        job = cls(machine, victim, machine.target("llm"), ("", ""))
        job.work(5)
        job.devices = job.where()
        return job

    def work(self, steps: int) -> None:
        assert self.victim.ask(f"step {steps}") == "ok"
        self.said = self.victim.ask()

    def where(self) -> tuple[str, str]:
        first, second = self.victim.ask("where").split()
        return first, second

    def leave(self) -> Answer:
        gone = self.machine.ask("checkpoint", "llm")
        assert (gone.code, gone.body["vram_after_bytes"]) == (0, 0), gone.body
        assert [row["device"] for row in gone.body["processes"]] == list(self.devices)
        return gone

    def come_back(self, *onto: str) -> Answer:
        """Brings the job back on the devices that it left, or on these two."""
        wanted = (onto[0], onto[1]) if onto else self.devices
        moved = {old: new for old, new in zip(self.devices, wanted, strict=True) if old != new}
        back = self.machine.ask("restore", "llm", devices=moved)
        assert (back.code, back.body.get("state"), back.body.get("moved")) == (0, "running", moved), back.body
        self.devices = wanted
        self.is_whole()
        if moved:
            assert self.most_is_on() == wanted[0]
        return back

    def is_whole(self) -> None:
        """Every byte, on the devices where it should be, and they still reach each other."""
        assert self.victim.ask() == self.said
        assert self.where() == self.devices
        assert self.victim.ask("peers") == ENABLED
        found = self.machine.job("llm")
        assert found
        assert [row["device"] for row in found["processes"]] == list(self.devices), found
        self.work(1)

    def most_is_on(self) -> str:
        """Returns the device that has most; the count does not depend on the owner."""
        found = self.counted()
        return max(found, key=lambda device: found[device][0])

    def counted(self) -> dict[str, tuple[int, int]]:
        """Returns by device the bytes in use, and those of this process, as asked by a program outside gcr."""
        rows = self.machine.bare(sys.executable, "-c", COUNTED.format(pid=self.pid)).split()
        return {rows[i]: (int(rows[i + 1]), int(rows[i + 2])) for i in range(0, len(rows), 3)}
