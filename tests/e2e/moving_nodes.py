"""Two nodes on one machine: each has its own processes, files and network, as `unshare` gives them, and the same paths.

A job finds its daemon by the path of a socket, and comes back under its pids. So two nodes need the same paths, and
must not see each other's processes. Both folders are reached from outside as well, and the
daemons by their sockets there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
MOVES_S = 400.0
HOST = "10.99.0.1"  # of the node `a`, on the cable
ROOT = Path(__file__).parents[2]
VICTIM = ROOT / "tests/victims/moving_victim.py"
_INIT = "import os, time\nwhile True:\n try: os.wait()\n except ChildProcessError: time.sleep(0.05)\n"
_FIRST_PIDS = {"a": 20_000, "b": 1_000}  # two machines seldom use the same ids


def until(probe: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@dataclass
class Said:
    code: int
    body: dict[str, Any]
    stderr: str


@dataclass
class Node:
    """One node. `place`: the path of its folder within it; `folder`: the same from outside.

    own_pids: else it sees all processes, as an NVIDIA driver wants that names them
    """

    name: str
    folder: Path
    place: Path
    extra: Mapping[str, str]
    own_pids: bool = True
    holder: "subprocess.Popen[bytes]" = field(init=False)
    init: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("run", "state", "sim"):
            (self.folder / name).mkdir(mode=0o700, parents=True)
        alone = ("--pid", "--net", "--fork", "--mount-proc", "--kill-child") if self.own_pids else ()
        words = ["unshare", "--mount", *alone, "sh", "-c"]
        first = f"echo {_FIRST_PIDS[self.name]} > /proc/sys/kernel/ns_last_pid" if self.own_pids else "true"
        ready = f"touch {self.place}/up && exec {sys.executable} -c '{_INIT}'"
        script = f"mount --bind {self.folder} {self.place} && {first} && {ready}"
        self.holder = subprocess.Popen([*words, script], stdin=subprocess.DEVNULL)
        until(lambda: (self.folder / "up").exists(), "the node is up")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        self.init = int(children[0]) if self.own_pids else self.holder.pid

    @property
    def socket(self) -> str:
        return str(self.folder / "run" / "gcr" / "gcrd.sock")

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "XDG_RUNTIME_DIR": str(self.place / "run"),
            "XDG_STATE_HOME": str(self.place / "state"),
            "GCR_STORE": str(self.place / "store"),
            "GCR_SIM_STATE": str(self.place / "sim"),
            "GCR_FAULTS": str(self.place / "faults"),
            "GCR_LOG_LEVEL": "DEBUG",
            "GCR_SEGMENT_BYTES": str(16 << 20),
        }
        inherited = {name: value for name, value in os.environ.items() if name != "GCR_SOCKET"}
        return {**inherited, **ours, **self.extra}

    def gcr(self, *words: str) -> Said:
        done = subprocess.run(
            self.within([sys.executable, "-m", "gcr", "--json", *words]),
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Said(done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr)

    def within(self, words: Sequence[str]) -> list[str]:
        spaces = ("--mount", "--pid", "--net") if self.own_pids else ("--mount",)
        return ["nsenter", "--target", str(self.init), *spaces, "--", *words]

    def state(self, job: str) -> str | None:
        """Returns the state of the job here, None where it is not here."""
        rows = self.gcr("ps").body["jobs"]
        return next((row["state"] for row in rows if row["job"] == job), None)

    def pids(self, word: str) -> list[int]:
        """Returns the pids, as they are outside, of this node's processes whose command line has a word."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry) and word.encode() in _read(entry / "cmdline"):
                found.append(int(entry.name))
        return sorted(found)

    def kill(self, word: str) -> None:
        """Kills this node's processes of a word; they have ended when this returns."""
        killed = {*self.pids(word)}
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not killed & {*self.pids(word)}, f"what is killed ends: {word}")

    def inject(self, *rules: str) -> None:
        fresh = self.folder / "faults.fresh"
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        fresh.replace(self.folder / "faults")

    def images(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "store" / "images").glob("*.json"))

    def packs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "store" / "packs").glob("*.pack"))

    def records(self) -> list[Path]:
        return sorted((self.folder / "state" / "gcr" / "migrations").glob("*/*.json"))

    def device_bytes(self) -> int:
        """Returns the bytes that the simulated device counts as used."""
        return sum(row["used_bytes"] for row in self.gcr("devices").body["devices"])

    def logs(self) -> str:
        files = sorted((self.folder / "state").rglob("*.log"))
        return "".join(f"==== {self.name} {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in files)

    def close(self) -> None:
        if not self.own_pids:
            for pid in self.pids("gcr") + self.pids("victim"):
                os.kill(pid, signal.SIGKILL)
        self.holder.kill()
        self.holder.wait(10)

    def _is_ours(self, entry: Path) -> bool:
        try:
            space = "pid" if self.own_pids else "mnt"
            return (entry / "ns" / space).readlink() == Path(f"/proc/{self.init}/ns/{space}").readlink()
        except OSError:
            return False


@dataclass
class TwoNodes:
    """The nodes `a` and `b`, and a folder that both have."""

    until = staticmethod(until)

    root: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    simulate: str | None = "nvidia"
    own_pids: bool = True

    def __post_init__(self) -> None:
        (self.root / "node").mkdir(parents=True)
        self.shared = self.root / "shared"
        self.shared.mkdir()
        self.a = Node("a", self.root / "a", self.root / "node", self.extra, self.own_pids)
        self.b = Node("b", self.root / "b", self.root / "node", self.extra, self.own_pids)
        if self.own_pids:
            self._connect()
        for node in (self.a, self.b):
            assert node.gcr("daemon", "start").code == 0

    def _connect(self) -> None:
        """Lays a cable between the nodes."""
        pair = ("veth", "peer", "name", "cable", "netns", str(self.b.init))
        _run("ip", "link", "add", "name", "cable", "netns", str(self.a.init), "type", *pair)
        for node, address in ((self.a, HOST), (self.b, "10.99.0.2")):
            _run(*node.within(["ip", "address", "add", f"{address}/24", "dev", "cable"]))
            _run(*node.within(["ip", "link", "set", "cable", "up"]))
            _run(*node.within(["ip", "link", "set", "lo", "up"]))

    def cut(self) -> None:
        """Pulls the cable out."""
        _run(*self.a.within(["ip", "link", "set", "cable", "down"]))

    def run(self, *arguments: str) -> Path:
        """Starts the victim at `a`, and returns the path of its output, once it makes steps. `end` has it end."""
        out, lines = self.shared / "out", self.shared / "lines"
        out.touch()
        os.mkfifo(lines)
        self._lines = os.open(lines, os.O_RDWR | os.O_CLOEXEC)
        os.write(self._lines, b"on\n")
        words = [sys.executable, str(VICTIM), "--hold", *arguments]
        world = ("--simulate", self.simulate) if self.simulate else ()
        done = self.a.gcr("run", "-d", "--name", "llm", *world, "--", "sh", "-c", _into(words, out))
        assert done.code == 0, done.body
        self.until(lambda: "step 3" in out.read_text(), "the program makes steps")
        return out

    def end(self, out: Path) -> int:
        """Has the program end, wherever it runs. Returns the number of its steps."""
        os.close(self._lines)
        until(lambda: "digest" in out.read_text(), "the program ends")
        return int(out.read_text().splitlines()[-2].removeprefix("steps "))

    def migrate(self, *words: str) -> Said:
        return self.said(self.begin(*words))

    def said(self, moving: "subprocess.Popen[str]") -> Said:
        out, err = moving.communicate(timeout=MOVES_S)
        return Said(moving.returncode, json.loads(out) if out.strip() else {}, err)

    @contextmanager
    def held(self, step: str) -> Iterator["subprocess.Popen[str]"]:
        """Begins to migrate. Within the block the coordinator stands before this step."""
        held = self.root / "held"
        self.inject(f"{step} hold {held}")
        moving = self.begin()
        until(lambda: held.exists() or moving.poll() is not None, f"the coordinator comes to {step}")
        assert moving.poll() is None, moving.communicate()
        yield moving
        held.unlink(missing_ok=True)

    def begin(self, *words: str, at: Node | None = None) -> "subprocess.Popen[str]":
        """Begins to migrate, from outside of both nodes, or at one of them."""
        nodes = ("--from", self.a.socket, "--to", self.b.socket, *(("--host", HOST) if self.own_pids else ()))
        command = [sys.executable, "-m", "gcr", "--json", "migrate", "llm", *nodes, *words]
        return subprocess.Popen(
            at.within(command) if at else command,
            cwd=ROOT,
            env={**(at.env if at else os.environ), "GCR_FAULTS": str(self.root / "faults")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def inject(self, *rules: str) -> None:
        """Faults of the coordinator."""
        (self.root / "faults").write_text("".join(f"{rule}\n" for rule in rules))

    def states(self) -> tuple[str | None, str | None]:
        """Returns the job's state at each node, once a daemon is there."""
        return self.a.state("llm"), self.b.state("llm")

    def close(self) -> None:
        for node in (self.a, self.b):
            node.close()
        shutil.rmtree(self.root, ignore_errors=True)


def _into(words: Sequence[str], out: Path) -> str:
    """Returns the program with its output in a file that both nodes have. Its errors are in the job's log."""
    return f"exec {' '.join(words)} <{out.with_name('lines')} >>{out}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
