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

from gcr.client import Client
from gcr.errors import DaemonUnavailable, GcrError, PeerGone
from gcr.jsonbody import error_to_json

ROOT = Path(__file__).parents[2]
VICTIMS = ROOT / "tests" / "victims"
TOLD = str(VICTIMS / "told_victim.py")
PATIENCE = 30.0
ON_DEVICE = bool(os.environ.get("GCR_E2E_ON_DEVICE"))  # the same tests on a real GPU: tests/gpu/device.sh deaths


@dataclass
class Answer:
    code: int
    body: dict[str, Any]
    stderr: str


@dataclass
class Victim:
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
        """Whether it says nothing for so long; what it said instead is in the failure."""
        import select

        assert self.supervisor.stdout
        ready, _, _ = select.select([self.supervisor.stdout], [], [], seconds)
        assert not ready, f"{self.name} said {self.supervisor.stdout.readline()!r}; its code: {self.supervisor.poll()}"
        return True

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
        inherited = {k: v for k, v in os.environ.items() if k != "GCR_SOCKET"}
        return {**inherited, **ours, **self.extra}

    @property
    def simulated(self) -> Path:
        return Path("/dev/shm") / f"gcr-test-{self.folder.name}-{os.getpid()}"

    @property
    def socket(self) -> Path:
        return Path(self.extra.get("GCR_SOCKET", self.folder / "run" / "gcr" / "gcrd.sock"))

    def gcr(self, *arguments: str, timeout: float = 60.0) -> Answer:
        """One command, with --json; its exit code and its object."""
        command = [sys.executable, "-m", "gcr", "--json", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout)
        body = json.loads(done.stdout) if done.stdout.strip() else {}
        return Answer(done.returncode, body, done.stderr)

    def ask(self, command: str, target: str | int = "", **more: Any) -> Answer:
        """The same without the start of a command: through a connection of the test's own, when there is a daemon."""
        try:
            client = self.connected()
        except (DaemonUnavailable, PeerGone):  # it is dead, or dying
            words = [str(target)] if target else []
            return self.gcr(command, *words)
        try:
            with client:
                return Answer(0, client.request(command, {"target": target, **more}, timeout=60.0), "")
        except GcrError as error:
            return Answer(error.exit, {"error": error_to_json(error)}, "")

    def connected(self) -> Client:
        """A connection to the daemon. Raises DaemonUnavailable."""
        before = os.environ.get("GCR_SOCKET")
        os.environ["GCR_SOCKET"] = str(self.socket)
        try:
            return Client.connect(autostart=False)
        finally:
            if before is None:
                del os.environ["GCR_SOCKET"]
            else:
                os.environ["GCR_SOCKET"] = before

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """A command that is not waited for."""
        command = [sys.executable, "-m", "gcr", "--json", *arguments]
        return self._popen(command)

    def begin_other(self, *command: str) -> "subprocess.Popen[str]":
        """A program of this machine that is no command of gcr's."""
        return self._popen(command)

    def run(self, name: str, *argv: str, ready: bool = True) -> Victim:
        world = [] if ON_DEVICE else ["--simulate", "nvidia"]
        command = [sys.executable, "-m", "gcr", "run", "--name", name, *world, "--", *argv]
        victim = Victim(name, self._popen(command))
        return self.ready(victim) if ready else victim

    @staticmethod
    def ready(victim: Victim) -> Victim:
        assert victim.hear() == "ready"
        return victim

    def told(self, name: str, *, before: Sequence[str] = ()) -> Victim:
        """A job that does what it is told (tests/victims/told_victim.py)."""
        return self.run(name, *before, sys.executable, TOLD)

    def stranger(self, *argv: str) -> Victim:
        """A program on the same simulated devices that gcr knows nothing of."""
        return self.ready(Victim("stranger", self._popen(argv or [sys.executable, TOLD], self.bare_env())))

    def bare(self, *argv: str, timeout: float = 60.0) -> str:
        """What a program prints without gcr, on the same simulated driver."""
        done = subprocess.run(argv, env=self.bare_env(), capture_output=True, text=True, timeout=timeout, check=True)
        return done.stdout

    def bare_env(self) -> dict[str, str]:
        from gcr.native import sim_dir

        return {**self.env, "LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIMULATE": "nvidia"}

    def job(self, name: str) -> dict[str, Any] | None:
        jobs = until(self._jobs, PATIENCE, "a daemon answers")["jobs"]
        return next((job for job in jobs if job["job"] == name), None)

    def until_state(self, name: str, *states: str, patience: float = PATIENCE) -> str:
        def found() -> str | None:
            job = self.job(name)
            return job["state"] if job and job["state"] in states else None

        return until(found, patience, f"{name} becomes {' or '.join(states)}")

    def _jobs(self) -> dict[str, Any] | None:
        """None from a daemon that is dying just now."""
        answer = self.ask("ps")
        return answer.body if answer.code == 0 else None

    # ---- who is who -------------------------------------------------------------------------------------------

    def daemon(self) -> int:
        """Its pid; the command starts it if there is none."""
        return int(self.gcr("daemon", "start").body["pid"])

    def children(self, module: str) -> list[int]:
        """Living processes of this machine that run a module of gcr's."""
        return [pid for pid in self._processes() if module.encode() in _argv(pid)]

    def target(self, name: str) -> int:
        return self.targets(name)[0]

    def targets(self, name: str, count: int = 1) -> list[int]:
        """Pids of the processes of a job whose agents have reported, at least so many."""

        def found() -> list[int] | None:
            job = self.job(name)
            pids = sorted({row["pid"] for row in job["processes"]}) if job else []
            return pids if len(pids) >= count else None

        pids: list[int] = until(found, PATIENCE, f"{count} processes of {name} report")
        return pids

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
            if process.stdin and process.stdin.closed:
                process.stdin = None
            process.communicate(timeout=10)
        shutil.rmtree(self.simulated, ignore_errors=True)

    def _popen(self, command: Sequence[str], env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        with (self.folder / "stderr").open("a") as log:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, env=env or self.env, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
            )
        self.started.append(process)
        return process

    def _processes(self) -> list[int]:
        mark = f"GCR_SIM_STATE={self.simulated}".encode()
        also = f"XDG_STATE_HOME={self.folder / 'state'}".encode()
        names = [entry.name for entry in Path("/proc").iterdir()]
        pids = [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]
        return [pid for pid in pids if (environ := _environ(pid)) and (mark in environ or also in environ)]


def until(probe: Callable[[], Any], patience: float, what: str) -> Any:
    """The probe's first true answer."""
    end = time.monotonic() + patience
    while not (found := probe()):
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return found


def bytes_short(answer: Answer) -> int:
    """How much is missing, as a refusal for lack of room says it: in its field and to people alike."""
    error = answer.body["error"]
    assert f"{error['missing']} bytes short" in error["message"]
    return int(error["missing"])


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
