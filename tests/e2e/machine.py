"""A private node for one test: its own runtime directory, state, simulated GPUs, and every process that belongs to it.

Everything is driven from outside, by the command line and by signals, as a user or an unlucky night would.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VICTIMS = ROOT / "tests" / "victims"
PATIENCE = 30.0


@dataclass
class Answer:
    code: int
    body: dict[str, Any]
    stderr: str


@dataclass
class Victim:
    """A program under `gcr run`, spoken to line by line."""

    name: str
    supervisor: "subprocess.Popen[str]"

    def ask(self, line: str = "?") -> str:
        self.tell(line)
        return self.hear()

    def tell(self, line: str = "?") -> None:
        assert self.supervisor.stdin
        self.supervisor.stdin.write(f"{line}\n")
        self.supervisor.stdin.flush()

    def hear(self, patience: float = PATIENCE) -> str:
        """Its next line. A silence is a failure, never a skip."""
        import select

        assert self.supervisor.stdout
        ready, _, _ = select.select([self.supervisor.stdout], [], [], patience)
        assert ready, f"{self.name} said nothing for {patience:g} s"
        return self.supervisor.stdout.readline().strip()


@dataclass
class Machine:
    folder: Path
    memory: int = 256 << 20
    devices: int = 1
    extra: dict[str, str] = field(default_factory=dict)
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "GCR_SIM_STATE": str(self.simulated),
            "GCR_SIM_DEVICES": str(self.devices),
            "GCR_SIM_MEMORY": str(self.memory),
            "GCR_FAULTS": str(self.folder / "faults"),
            "GCR_LOG_LEVEL": "DEBUG",
            "GCR_SEGMENT_BYTES": str(16 << 20),
        }
        return {**os.environ, **ours, **self.extra}

    @property
    def simulated(self) -> Path:
        return Path("/dev/shm") / f"gcr-test-{self.folder.name}-{os.getpid()}"

    def gcr(self, *arguments: str, timeout: float = 60.0) -> Answer:
        """One command, with --json; its exit code and its object."""
        command = [sys.executable, "-m", "gcr", "--json", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout)
        body = json.loads(done.stdout) if done.stdout.strip() else {}
        return Answer(done.returncode, body, done.stderr)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """A command that is not waited for."""
        command = [sys.executable, "-m", "gcr", "--json", *arguments]
        return self._popen(command)

    def run(self, name: str, *argv: str, ready: bool = True) -> Victim:
        command = [sys.executable, "-m", "gcr", "run", "--name", name, "--simulate", "nvidia", "--", *argv]
        victim = Victim(name, self._popen(command))
        if ready:
            assert victim.hear() == "ready"
        return victim

    def bare(self, *argv: str, timeout: float = 60.0) -> str:
        """What a program prints without gcr, on the same simulated driver."""
        done = subprocess.run(argv, env=self.bare_env(), capture_output=True, text=True, timeout=timeout, check=True)
        return done.stdout

    def bare_env(self) -> dict[str, str]:
        from gcr.native import sim_dir

        return {**self.env, "LD_LIBRARY_PATH": str(sim_dir("nvidia"))}

    def job(self, name: str) -> dict[str, Any] | None:
        jobs = self.gcr("ps").body["jobs"]
        return next((job for job in jobs if job["job"] == name), None)

    def until_state(self, name: str, *states: str, patience: float = PATIENCE) -> str:
        def found() -> str | None:
            job = self.job(name)
            return job["state"] if job and job["state"] in states else None

        return until(found, patience, f"{name} becomes {' or '.join(states)}")

    # ---- who is who -------------------------------------------------------------------------------------------

    def daemon(self) -> int:
        """Its pid; the command starts it if there is none."""
        return int(self.gcr("daemon", "status").body["pid"])

    def children(self, module: str) -> list[int]:
        """Living processes of this machine that run a module of gcr's."""
        return [pid for pid in self._processes() if module.encode() in _argv(pid)]

    def target(self, name: str) -> int:
        job = self.job(name)
        assert job
        return int(job["processes"][0]["pid"])

    # ---- faults -----------------------------------------------------------------------------------------------

    def inject(self, *rules: str) -> None:
        fresh = self.folder / "faults.fresh"
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        fresh.replace(self.folder / "faults")

    @contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """Within the block the next transaction stands at `step`, once it was begun by the block's own hand."""
        held = self.folder / "held"
        self.inject(f"{step} hold {held}")
        try:
            yield
        finally:
            held.unlink(missing_ok=True)

    def wait_held(self) -> None:
        until(lambda: (self.folder / "held").exists() or None, PATIENCE, "the transaction comes to the step")

    # ---- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for pid in self._processes():
            _kill(pid)
        for process in self.started:
            process.communicate(timeout=10)
        shutil.rmtree(self.simulated, ignore_errors=True)

    def _popen(self, command: Sequence[str]) -> "subprocess.Popen[str]":
        log = (self.folder / "stderr").open("a")
        with log:
            process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.started.append(process)
        return process

    def _processes(self) -> list[int]:
        mark = f"GCR_SIM_STATE={self.simulated}".encode()
        also = f"XDG_STATE_HOME={self.folder / 'state'}".encode()
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
        return [pid for pid in pids if (environ := _environ(pid)) and (mark in environ or also in environ)]


def until(probe: Callable[[], Any], patience: float, what: str) -> Any:
    """The probe's first true answer."""
    end = time.monotonic() + patience
    while not (found := probe()):
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _argv(pid: int) -> bytes:
    return _read(pid, "cmdline")


def _environ(pid: int) -> bytes:
    return _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
