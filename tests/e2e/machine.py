"""A private node for one test: its own runtime directory, state, simulated GPUs, and every process that belongs to it.

Everything is driven from outside, by the command line and by signals, as a user or an unlucky night would.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warm
from worlds import NVIDIA, ON_DEVICE, ROOT, VICTIMS, World

from gcr.errors import DaemonUnavailable, PeerGone
from gcr.testing.machine import PATIENCE, Answer, SimulatedMachine, alive, until
from gcr.testing.machine import Job as Victim

__all__ = [
    "ALLOC",
    "PATIENCE",
    "ROOT",
    "TOLD",
    "VICTIMS",
    "Answer",
    "Machine",
    "Victim",
    "alive",
    "bytes_short",
    "kill",
    "until",
]

HERE = Path(__file__).parent
TOLD = str(VICTIMS / "told_victim.py")
LISTENING = "00010000"  # flags in /proc/net/unix
SUCCESSOR_SECONDS = 3.0
HEARD = 0.5  # seconds from the end of a connection until the daemon has done what it does then
ALLOC = str(VICTIMS / "alloc_victim.py")


@dataclass
class Machine(SimulatedMachine):
    vendor: str = "nvidia"
    where: World = NVIDIA
    asking: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))
    starter = staticmethod(warm.popen)
    succeeded: bool = False  # a daemon that died, by one that its supervisor started

    def __post_init__(self) -> None:
        if path := self.where.environment().get("PYTHONPATH"):
            warm.expect(path, self.vendor)

    @property
    def world(self) -> Sequence[str]:
        return () if ON_DEVICE else super().world

    def close(self) -> None:
        super().close()
        self.asking.shutdown()

    def gcr(self, *arguments: str, timeout: float = 60.0) -> Answer:
        """The same without the start of an interpreter (tests/e2e/warm.py)."""
        done = warm.run("gcr", "--json", *arguments, env=self.env, timeout=timeout, launches=not self._served())
        body = json.loads(done.stdout) if done.stdout.strip() else {}
        return Answer(done.returncode, body, done.stderr)

    def _served(self) -> bool:
        """Returns whether a daemon listens. A connection would disturb it."""
        return any(row[7:] == [str(self.socket)] and row[3] == LISTENING for row in _unix_sockets())

    # ---- programs ---------------------------------------------------------------------------------------------

    def told(self, name: str, *lines: str, before: Sequence[str] = ()) -> Victim:
        """A job that does what it is told (tests/victims/told.py), and has done these."""
        job = self.run(name, *before, sys.executable, str(VICTIMS / self.where.told))
        for line in lines:
            assert job.ask(line) == "ok", line
        return job

    def allocating(self, *arguments: str) -> list[str]:
        """Returns the command of a program that checks every word of its threads (tests/victims/alloc_victim.py)."""
        return [sys.executable, ALLOC, "--vendor", self.vendor, *arguments]

    def start(self) -> tuple[Victim, str]:
        """Such a job, which has come to rest, and what it says of its memory from here on."""
        job = self.run("llm", *self.allocating("--interactive", "--steps", "60"))
        return job, job.ask()

    def stranger(self, *argv: str) -> Victim:
        """A program on the same simulated devices that gcr knows nothing of."""
        return self.begin_bare(*(argv or (sys.executable, str(VICTIMS / self.where.told))))

    def end(self, job: Victim) -> None:
        """It and everything of it, until gcr knows it no more."""
        for pid in {job.supervisor.pid, *self._of(job.name)}:
            if alive(pid):
                kill(pid)
        until(lambda: self.job(job.name) is None or None, PATIENCE, "the job is forgotten")

    def end_by_pid(self, pid: int) -> None:
        """Ends a program, and waits until gcr knows its job no more."""
        kill(pid)
        until(lambda: all(row["pid"] != pid for row in self._jobs_known()) or None, PATIENCE, "the job is forgotten")

    def _jobs_known(self) -> list[dict[str, Any]]:
        jobs = until(self._jobs, PATIENCE, "a daemon answers")["jobs"]
        assert isinstance(jobs, list)
        return jobs

    def _of(self, name: str) -> list[int]:
        job = self.job(name)
        return [row["pid"] for row in job["processes"]] if job else []

    def used(self) -> int:
        """Bytes of all devices, by their own count, asked by a program of no part of gcr's."""
        done = warm.run("used_bytes", self.vendor, env=self.bare_env(), timeout=60.0, folder=HERE)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    # ---- there and back ---------------------------------------------------------------------------------------

    def leave(self) -> Answer:
        """The job is checkpointed, as it can be in this world, and the device counts nothing of it."""
        gone = self.ask("checkpoint", "llm", **self.where.how)
        assert gone.code == 0, gone.body
        assert (gone.body["state"], gone.body["strategy"]) == (self.where.suspended, self.where.strategy), gone.body
        if not (self.where.keeps_context or self.where.data_only):
            assert gone.body["vram_after_bytes"] == 0
        return gone

    def come_back(self) -> Answer:
        back = self.ask("restore", "llm")
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
        return back

    def comes_back(self, job: Victim, before: str) -> None:
        """Brings the job back from any state, swaps it once more, and checks that it is unchanged."""
        if self.settled() != "running":
            self.come_back()
        assert job.ask() == before
        self.leave()
        self.come_back()
        assert job.ask() == before

    def settled(self) -> str:
        """Returns the job's state once it is a lasting one.

        A supervisor starts the next daemon itself, but for ten seconds no other: the first is waited for.
        """
        if not self.succeeded:
            end = time.monotonic() + SUCCESSOR_SECONDS
            while not self.listens() and time.monotonic() < end:
                time.sleep(0.02)
        self.succeeded = True
        return self.until_state("llm", "running", "suspended", "data_suspended")

    def listens(self) -> bool:
        try:
            self.connected().close()
        except (DaemonUnavailable, PeerGone):
            return False
        return True

    def command(self, command: str, name: str | int = "llm") -> "Future[Answer]":
        """A checkpoint or restore that is not waited for, by a connection of its own."""
        how = {**self.where.how} if command == "checkpoint" else {}
        return self.asking.submit(self.ask, command, name, **how)

    # ---- faults -----------------------------------------------------------------------------------------------

    @contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """Within the block the next transaction stands at `step`, once it was begun by the block's own hand."""
        held = self.folder / "held"
        self.inject(f"{step} hold {held}")
        try:
            yield
        finally:
            held.unlink(missing_ok=True)

    def leaves(self, leave: Callable[[], object]) -> None:
        """Has a waiting caller leave, and returns when the daemon has heard of it."""
        before = self._connections()
        leave()
        until(lambda: before - self._connections(), PATIENCE, "the daemon has closed the connection")
        time.sleep(HEARD)

    @contextmanager
    def another_connects(self) -> Iterator[None]:
        """Within the block another process connects to the daemon; after it the daemon has heard that one."""
        before = self._connections()
        yield
        until(lambda: self._connections() - before, PATIENCE, "another process is connected")
        time.sleep(HEARD)

    def _connections(self) -> set[str]:
        """Inodes of the daemon's ends."""
        return {row[6] for row in _unix_sockets() if row[7:] == [str(self.socket)]}

    def wait_held(self) -> None:
        until(lambda: (self.folder / "held").exists() or None, PATIENCE, "the transaction comes to the step")


def _unix_sockets() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]


def stop(pid: int) -> None:
    """Stops a process (SIGSTOP), and returns when none of its threads runs any more.

    The signal is one thread's; on a busy machine the others run on until that one has its turn.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _thread_states(pid) == {"T"}, 10, "all its threads are stopped")


def _thread_states(pid: int) -> set[str]:
    stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


def kill(*pids: int) -> None:
    """One after the other; a later one may have followed an earlier one by itself."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda p=pid: not alive(p) or None, 10, "it is dead")


def bytes_short(answer: Answer) -> int:
    """Returns the missing bytes of a refusal for lack of room; its field and its message must agree."""
    error = answer.body["error"]
    found = re.search(r"([\d.]+) (B|KiB|MiB|GiB) short", error["message"])
    assert found, error
    unit = 1024 ** ("B", "KiB", "MiB", "GiB").index(found[2])
    assert abs(float(found[1]) - error["missing"] / unit) < 0.06, error
    return int(error["missing"])
