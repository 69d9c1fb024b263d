"""Memory and descriptors of the processes of a machine, cycle after cycle: nothing may grow."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from machine import Machine, Victim

MIB = 1 << 20
MOST_AT_ONCE = 3 * MIB  # bytes, of each process: its allocator takes whole MiB now and then
# Bytes a cycle, in every quarter: what leaks comes steadily. What an allocator cannot use again comes to half a KiB a
# cycle at first.
MOST_STEADY = 900
# Of a program that itself allocates and frees: its own memory, and the escrow has a descriptor for each handle alive.
MOST_OF_LIVELY = 4 * MIB
MOST_ALIVE = 8
LONG = 400  # cycles, from which on a slow leak shows


@dataclass
class Growth:
    """`look` after each cycle; then what came on top from the second quarter to the last: in the first all is made."""

    who: Mapping[str, int]
    seen: list[dict[str, tuple[int, int]]] = field(default_factory=list)

    @classmethod
    def of(cls, machine: Machine, job: Victim) -> "Growth":
        """Watches all processes of a machine with one job that was swapped before."""
        (worker,) = machine.children("gcr.worker")
        pids = {"target": machine.target(job.name), "supervisor": job.supervisor.pid, "gcrd": machine.daemon()}
        helpers = zip(["control helper"], machine.children("gcr.control_helper"), strict=False)  # AMD's may have none
        return cls({**pids, "worker": worker, **dict(helpers)})

    def look(self) -> None:
        self.seen.append({name: (descriptors(pid), private_bytes(pid)) for name, pid in self.who.items()})

    def grown(self) -> dict[str, tuple[int, int]]:
        """Descriptors and bytes of each."""
        quarter = len(self.seen) // 4
        early, late = self.seen[quarter : 2 * quarter], self.seen[-quarter:]
        return {
            name: (
                min(now[name][0] for now in late) - min(now[name][0] for now in early),
                self._middle(name, 3) - self._middle(name, 1),
            )
            for name in self.who
        }

    def _middle(self, name: str, quarter: int) -> int:
        """Bytes, typically, in one of the four quarters."""
        length = len(self.seen) // 4
        return int(statistics.median(now[name][1] for now in self.seen[quarter * length : (quarter + 1) * length]))

    def steady(self, name: str) -> float:
        """Bytes a cycle, in the quarter with less."""
        more = [self._middle(name, quarter) - self._middle(name, quarter - 1) for quarter in (2, 3)]
        return min(more) / (len(self.seen) // 4)

    def judge(self, lively: bool = False) -> None:
        """`lively`: the program goes on allocating meanwhile."""
        for name, (more, size) in self.grown().items():
            most = MOST_OF_LIVELY if lively and name == "target" else MOST_AT_ONCE
            counts, sizes = zip(*(now[name] for now in self.seen), strict=True)
            assert more <= (MOST_ALIVE if lively else 0), f"{name}: {more} descriptors more: {counts}"
            assert size < most, f"{name}: {size} bytes more: {sizes}"
            if len(self.seen) >= LONG and not (lively and name == "target"):
                assert self.steady(name) < MOST_STEADY, f"{name}: {self.steady(name):.0f} bytes a cycle more: {sizes}"

    def summary(self) -> str:
        rows = (f"{name} {size / MIB:+.2f} MiB {more:+d} fd" for name, (more, size) in self.grown().items())
        return ", ".join(rows)


def descriptors(pid: int) -> int:
    """Open ones, less the arena's segments: it grows in the background, at its own time."""
    links = [leads_to(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return sum("gcr-arena" not in link for link in links if link)


def leads_to(link: Path) -> str:
    """Empty for one that was closed meanwhile."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def private_bytes(pid: int) -> int:
    """Returns the private resident bytes: not the arena's, not the simulated device's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(kib) << 10


def table_size(pid: int) -> int:
    """Returns how many descriptors the kernel's table of a process has room for."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (size,) = (line.split()[1] for line in lines if line.startswith("FDSize:"))
    return int(size)
