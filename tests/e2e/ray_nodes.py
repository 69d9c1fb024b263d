"""Nodes of a Ray cluster on this machine, each with a daemon, a store and simulated devices of its own."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import Answer, Machine, until

STARTED_S = 90.0
ENDED_S = 30.0
OBJECTS = "80000000"  # bytes of Ray's object store, about the least that it takes


@dataclass
class RayNodes:
    """The first node that is added is the head.

    under: the job of gcr that all of Ray's processes on a node are, None for none · gpus: of each node, as Ray counts
    variables: of Ray's processes, and of no command of gcr on a node
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")))
    machines: dict[str, Machine] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    port: int = 0
    under: str | None = None
    gpus: int = 0
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Of a program on the head."""
        return {**next(iter(self.machines.values())).env, "RAY_ADDRESS": f"127.0.0.1:{self.port}"}

    def add(self, name: str) -> Machine:
        place = self.folder / name
        place.mkdir(mode=0o700)
        # The machine may have much else to do: a cut gets a minute.
        machine = Machine(place, extra={"GCR_STORE": str(place / "store"), "GCR_CUT_S": "60"})
        (place / "run").mkdir(mode=0o700)
        if self.machines:
            where = ["--address", f"127.0.0.1:{self.port}"]
        else:
            self.port = _free_port()
            where = ["--head", "--port", str(self.port), "--include-dashboard=false", "--temp-dir", f"{self.folder}/t"]
            where += ["--no-monitor"]
        self.machines[name] = machine
        # No test has a use for Ray's autoscaler, or for the logs of workers in a driver: three interpreters less.
        words = [
            "--node-name",
            name,
            "--num-cpus",
            "1",
            "--num-gpus",
            str(self.gpus),
            "--object-store-memory",
            OBJECTS,
            "--disable-usage-stats",
            "--include-log-monitor=false",
        ]
        program, log = str(Path(sys.executable).parent / "ray"), self.folder / f"{name}.log"
        command = [program, "start", "--block", "--node-ip-address", "127.0.0.1", *where, *words]
        if self.under:
            command = [sys.executable, "-m", "gcr", "run", "--name", self.under, *machine.world, "--", *command]
        with log.open("wb") as out:
            env = {**machine.env, **self.variables}
            made = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.processes.append(made)
        until(lambda: b"Ray runtime started" in log.read_bytes() or None, STARTED_S, f"node {name} is up")
        return machine

    def gcr(self, *words: str, node: str | None = None, **variables: str) -> Answer:
        """A command on a node, the head by default. An empty variable is none."""
        command, env = [sys.executable, "-m", "gcr", "--json", *words], self.env
        if node:
            env = {**env, **self.machines[node].env}
        env = {name: value for name, value in {**env, **variables}.items() if value or name not in variables}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=STARTED_S)
        return Answer(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)

    def carried(self, node: str, op: str, body: dict[str, Any], *withdrawn_at: str) -> Sequence[dict[str, Any]]:
        """Returns the node's words about a request, which is withdrawn at this phase."""
        program = str(Path(__file__).parent / "carrier.py")
        command = [sys.executable, program, node, op, json.dumps(body), *withdrawn_at]
        done = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, text=True, timeout=STARTED_S)
        assert done.returncode == 0
        return [json.loads(line) for line in done.stdout.splitlines()]

    def actors(self) -> list[int]:
        """Returns the pids of gcr's actors."""
        return [pid for pid in map(int, pids()) if "ray::GcrNode" in title(pid)]

    def close(self) -> None:
        """Kills Ray's processes, which all name the folder, or end with those that do: to end them takes it 30 s."""
        for pid in map(int, pids()):
            if str(self.folder) in title(pid) and pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.kill()
            process.wait(ENDED_S)
        for machine in self.machines.values():
            machine.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def two_nodes(under: str | None = None, gpus: int = 0) -> Iterator[RayNodes]:
    """Yields the nodes `one` and `two`; the arguments are as of RayNodes."""
    made = RayNodes(under=under, gpus=gpus)
    try:
        for name in ("one", "two"):
            made.add(name)
        yield made
    finally:
        made.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def pids() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]


def title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
