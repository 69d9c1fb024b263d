"""A held victim that runs, under gcr or bare, and what it said when (tests/victims/dialogue.py is its side)."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from program import GCR

from gcr_nvidia import devices

LAST_WORDS_SECONDS = 2.0
LOOK_SECONDS = 0.2  # no event tells that a process has ended
STEP = re.compile(r"step (\d+)\b")


class Silent(Exception):
    """It did not say what it should have by now."""


def device_bytes(pid: int) -> int:
    """Returns the bytes that all devices together count for a process."""
    return sum(devices.bytes_of(pid).values())


@dataclass(frozen=True)
class World:
    """The devices on which victims run: this machine's, or simulated ones in a test.

    flags: of `gcr run` · environment: of a bare program · bytes_of: the devices' count for a process
    """

    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    bytes_of: Callable[[int], int] = device_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A line that shows that it works: when it came, and the number in it, which only grows."""

    at: float
    number: int


class Held:
    """Started; `job`: its name under gcr, None for bare. Leaving the context ends it if it did not end by itself.

    place: variables that lead to another daemon than this process's
    """

    def __init__(
        self, command: Sequence[str], world: World, job: str | None, place: Mapping[str, str] | None = None
    ) -> None:
        full = [*GCR, "run", "--name", job, *world.flags, "--", *command] if job else command
        environment = {**os.environ, **({} if job else world.environment), **(place or {})}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(full, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.steps: list[Step] = []
        self._news = threading.Condition()
        pipes = ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            with self._news:
                lines.append(line)
                if found := STEP.match(line):
                    self._count(int(found[1]))
                self._news.notify_all()

    def _count(self, number: int) -> None:
        """Some say now and then where they are, whether they came further or not."""
        if not self.steps or number > self.steps[-1].number:
            self.steps.append(Step(time.monotonic(), number))

    def await_ready(self, seconds: float) -> None:
        self._await(lambda: "ready\n" in self.stdout, seconds, "ready")

    def await_step(self, seconds: float) -> None:
        """One more than there were."""
        seen = len(self.steps)
        self._await(lambda: len(self.steps) > seen, seconds, "another step")

    def _await(self, said: Callable[[], bool], seconds: float, what: str) -> None:
        """Raises Silent, soon if it has ended."""
        give_up = time.monotonic() + seconds
        with self._news:
            while not said() and self.process.poll() is None and time.monotonic() < give_up:
                self._news.wait(LOOK_SECONDS)
        if self.process.poll() is not None:
            self._hear_out()
        if not said():
            raise Silent(f"not {what} within {seconds:.0f} s; its exit code: {self.process.poll()}")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def finish(self, seconds: float) -> None:
        """Standard input ends, and then it. Raises Silent if it goes on, or broke off before its last words."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Silent(f"still running {seconds:.0f} s after standard input ended") from None
        self._hear_out()
        if not self.done():
            raise Silent(f"ended with {self.process.returncode} and did not say how much it did")

    def _hear_out(self) -> None:
        """Reads the rest of its output; children may live on with the outputs open."""
        for reader in self._readers:
            reader.join(LAST_WORDS_SECONDS)

    def done(self) -> str:
        """Returns how much the victim did, by its own word; empty until it says so."""
        return next((line.split()[1] for line in reversed(self.stdout) if line.startswith("steps ")), "")

    def last_words(self) -> str:
        return "".join([*self.stdout[-4:], *self.stderr[-60:]])[-6000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            for pid in [*family(self.process.pid), self.process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self._hear_out()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        for reader, pipe in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            if not reader.is_alive():  # else closing would wait for what it reads
                pipe.close()


def family(pid: int) -> list[int]:
    """The process's descendants, the first before theirs."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found.extend(children.get(each, []))
    return found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # no process, or gone
            yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
