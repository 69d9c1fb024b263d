"""A private machine for one test: simulated devices, gcr's daemon in a directory of its own, and what runs on them.

Everything is driven from outside, by the command line, as a user would. Every wait has a deadline: a silence is a
failure, never a skip. `close` ends every process that belongs to the machine and removes its devices.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gcr.errors import DaemonUnavailable, GcrError, PeerGone
from gcr.processes import start_time
from gcr.protocol.jsonbody import error_to_json
from gcr.rendezvous.client import Client

PATIENCE = 30.0
LAST_WORDS_SECONDS = 10.0
_THREADS = 17  # where /proc/pid/stat has their number, counted from the state


@dataclass
class Answer:
    """The outcome of a gcr command: its exit code and its JSON object."""

    code: int
    body: dict[str, Any]
    stderr: str


@dataclass
class Job:
    """A program, under `gcr run` or bare, spoken to line by line."""

    name: str
    supervisor: "subprocess.Popen[str]"

    def ask(self, line: str = "?") -> str:
        self.tell(line)
        return self.hear()

    def tell(self, line: str = "?") -> None:
        assert self.supervisor.stdin
        self.supervisor.stdin.write(f"{line}\n")
        self.supervisor.stdin.flush()

    def silent(self, seconds: float = 0.3) -> bool:
        """Returns True if the program prints nothing for `seconds`; otherwise fails with the line that it printed."""
        assert self.supervisor.stdout
        ready, _, _ = select.select([self.supervisor.stdout], [], [], seconds)
        assert not ready, f"{self.name} said {self.supervisor.stdout.readline()!r}; its code: {self.supervisor.poll()}"
        return True

    def hear(self, patience: float = PATIENCE) -> str:
        """Returns the job's next line."""
        assert self.supervisor.stdout
        ready, _, _ = select.select([self.supervisor.stdout], [], [], patience)
        assert ready, f"{self.name} said nothing for {patience:g} s"
        return self.supervisor.stdout.readline().strip()


@dataclass
class SimulatedMachine:
    """`memory`: bytes of each device. `extra`: environment of everything that runs here, over all else.

    `starter`: starts a program, with the arguments of subprocess.Popen
    """

    folder: Path
    vendor: str
    memory: int = 256 << 20
    devices: int = 1
    extra: dict[str, str] = field(default_factory=dict)
    started: list["subprocess.Popen[str]"] = field(default_factory=list)
    starter: ClassVar[Callable[..., "subprocess.Popen[str]"]] = subprocess.Popen

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "GCR_SIM_STATE": str(self.simulated),
            "GCR_SIM_DEVICES": str(self.devices),
            "GCR_SIM_MEMORY": str(self.memory),
            "GCR_FAULTS": str(self.folder / "faults"),
            "GCR_LOG_LEVEL": "DEBUG",
            "GCR_SEGMENT_BYTES": str(16 << 20),
        }
        inherited = {name: value for name, value in os.environ.items() if name != "GCR_SOCKET"}
        return {**inherited, **ours, **self.extra}

    @property
    def simulated(self) -> Path:
        return Path("/dev/shm") / f"gcr-test-{self.folder.name}-{os.getpid()}"

    @property
    def socket(self) -> Path:
        return Path(self.extra.get("GCR_SOCKET", self.folder / "run" / "gcr" / "gcrd.sock"))

    @property
    def world(self) -> Sequence[str]:
        """Options of `gcr run` that lead a job to this machine's devices."""
        return ("--simulate", self.vendor)

    def bare_env(self) -> dict[str, str]:
        """Returns the environment in which a program without gcr uses these devices."""
        return {**self.env, **simulated_driver(self.vendor)}

    # ---- commands ---------------------------------------------------------------------------------------------

    def gcr(self, *arguments: str, timeout: float = 60.0) -> Answer:
        """Runs one command with --json; returns its exit code and its object."""
        command = [sys.executable, "-m", "gcr", "--json", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout)
        body = json.loads(done.stdout) if done.stdout.strip() else {}
        return Answer(done.returncode, body, done.stderr)

    def ask(self, command: str, target: str | int = "", **more: Any) -> Answer:
        """Does the same without a process: through a connection of the test's own, if there is a daemon."""
        try:
            client = self.connected()
        except (DaemonUnavailable, PeerGone):  # it is dead, or dying
            words = [str(target)] if target else []
            flags = [f"--{name.replace('_', '-')}" for name, wanted in more.items() if wanted is True]
            return self.gcr(command, *words, *flags)
        try:
            with client:
                return Answer(0, dict(client.request(command, {"target": target, **more}, timeout=60.0)), "")
        except GcrError as error:
            return Answer(error.exit, {"error": error_to_json(error)}, "")

    def connected(self, any_version: bool = False) -> Client:
        """Returns a connection to the daemon. Raises DaemonUnavailable."""
        before = os.environ.get("GCR_SOCKET")
        os.environ["GCR_SOCKET"] = str(self.socket)
        try:
            return Client.connect(autostart=False, any_version=any_version)
        finally:
            if before is None:
                del os.environ["GCR_SOCKET"]
            else:
                os.environ["GCR_SOCKET"] = before

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """Starts a command without waiting for it."""
        return self._popen([sys.executable, "-m", "gcr", "--json", *arguments])

    def begin_other(self, *command: str) -> "subprocess.Popen[str]":
        """Starts a program of this machine that is no command of gcr."""
        return self._popen(command)

    # ---- programs ---------------------------------------------------------------------------------------------

    def run(self, name: str, *argv: str, ready: bool = True) -> Job:
        """Starts a job. `ready`: wait for its first line, which must be that word."""
        command = [sys.executable, "-m", "gcr", "run", "--name", name, *self.world, "--", *argv]
        job = Job(name, self._popen(command))
        return self.ready(job) if ready else job

    @staticmethod
    def ready(job: Job) -> Job:
        assert job.hear() == "ready"
        return job

    def bare(self, *argv: str, timeout: float = 60.0) -> str:
        """Returns the output of a program without gcr, on the same simulated driver."""
        done = subprocess.run(argv, env=self.bare_env(), capture_output=True, text=True, timeout=timeout, check=True)
        return done.stdout

    def begin_bare(self, *argv: str) -> Job:
        """Starts a program without gcr on the same simulated devices."""
        return self.ready(Job("bare", self._popen(argv, self.bare_env())))

    def job(self, name: str) -> dict[str, Any] | None:
        jobs = until(self._jobs, PATIENCE, "a daemon answers")["jobs"]
        return next((job for job in jobs if job["job"] == name), None)

    def until_state(self, name: str, *states: str, patience: float = PATIENCE) -> str:
        def found() -> str | None:
            job = self.job(name)
            return job["state"] if job and job["state"] in states else None

        return str(until(found, patience, f"{name} becomes {' or '.join(states)}"))

    def _jobs(self) -> dict[str, Any] | None:
        """Returns the answer of `ps`; None if the daemon is dying just now."""
        answer = self.ask("ps")
        return answer.body if answer.code == 0 else None

    def inject(self, *rules: str) -> None:
        """Faults that gcr's processes make on purpose, each once: `checkpoint.staged fail`. See gcr.faults."""
        fresh = self.folder / "faults.fresh"
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        fresh.replace(self.folder / "faults")

    # ---- processes --------------------------------------------------------------------------------------------

    def daemon(self) -> int:
        """Returns the daemon's pid; starts one if there is none."""
        return int(self.gcr("daemon", "start").body["pid"])

    def children(self, module: str) -> list[int]:
        """Returns the pids of this machine's living processes that run the module, the oldest process first."""
        found = [pid for pid in _processes(self) if module.encode() in _read(pid, "cmdline")]
        # Not in the order of pids, which are used again: the newest need not be the last.
        return sorted(found, key=lambda pid: start_time(pid) or 0)

    def target(self, name: str) -> int:
        return self.targets(name)[0]

    def targets(self, name: str, count: int = 1) -> list[int]:
        """Waits until so many processes of a job have reported. Returns their pids."""

        def found() -> list[int] | None:
            job = self.job(name)
            pids = sorted({row["pid"] for row in job["processes"]}) if job else []
            return pids if len(pids) >= count else None

        pids: list[int] = until(found, PATIENCE, f"{count} processes of {name} report")
        return pids

    # ---- the end ----------------------------------------------------------------------------------------------

    def logs(self) -> Mapping[str, str]:
        """Returns the logs of all processes here, by name of the file."""
        files = [*sorted((self.folder / "state").rglob("*.log")), self.folder / "stderr"]
        return {file.name: file.read_text(errors="replace") for file in files if file.exists()}

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for pid in sorted(_processes(self), key=_is_daemon):  # daemons last: a supervisor would start the next one
            _kill(pid)
        for process in self.started:
            if process.stdin and process.stdin.closed:
                process.stdin = None
            process.communicate(timeout=LAST_WORDS_SECONDS)
        told = violations(self.simulated)
        shutil.rmtree(self.simulated, ignore_errors=True)
        assert not told, told

    def _popen(self, command: Sequence[str], env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        with (self.folder / "stderr").open("a") as log:
            pipe = subprocess.PIPE
            process = type(self).starter(
                command, env=env or self.env, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
            )
        self.started.append(process)
        return process


def violations(simulated: Path) -> str:
    """Returns what was done to simulated devices that hardware does not forgive: a line for each."""
    told = simulated / "violations"
    return told.read_text() if told.exists() else ""


def simulated_driver(vendor: str) -> dict[str, str]:
    """Returns the variables that lead a process to a simulated driver. Raises UsageError for a backend without one."""
    from gcr.cli.parts import simulator_of

    simulator = simulator_of(vendor)
    return {**simulator.environment, "LD_LIBRARY_PATH": str(simulator.folder), "GCR_SIMULATE": vendor}


def until(probe: Callable[[], Any], patience: float, what: str) -> Any:
    """The probe's first true answer."""
    end = time.monotonic() + patience
    while not (found := probe()):
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    """Returns whether a thread of it runs; until none does no parent can wait for it, and its descriptors are open."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and (state[0] not in (b"Z", b"X") or int(state[_THREADS]) > 1)


def _processes(machine: SimulatedMachine) -> list[int]:
    """Returns the pids of all processes on this machine but this one."""
    mark = f"GCR_SIM_STATE={machine.simulated}".encode()
    also = f"XDG_STATE_HOME={machine.folder / 'state'}".encode()
    names = [entry.name for entry in Path("/proc").iterdir()]
    pids = [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]
    return [pid for pid in pids if (environ := _read(pid, "environ")) and (mark in environ or also in environ)]


def _is_daemon(pid: int) -> bool:
    return b"gcr.daemon" in _read(pid, "cmdline")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
