"""The cycle that `gcr demo` shows, through the command line like any user, on a SIMULATED machine of its own.

The machine, the daemon and its logs live in a temporary directory: what a user runs is not touched. Every step says
what was seen; the first that is not as it should be ends the demonstration.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from gcr import units
from gcr.errors import BackendMissing, GcrError, RolledBack

TIMEOUT = 120.0
CLEAN_UP_S = 15.0
JOB = "demo"
CHECKPOINT_AT = 4
MEMORY = 256 << 20  # of the simulated device
ROOM = 192 << 20  # what the other program wants: more than is left beside the job
PROGRAM = Path(__file__).with_name("program.py")
VENDORS = ("nvidia", "amd", "ascend")  # the first is shown where none is asked for
PACKAGES = {"nvidia": ("cuda.bindings", "pynvml"), "amd": ("hip.hip",), "ascend": ()}  # of a vendor's extra
DATA_ONLY = ("amd",)  # no call there saves a living process's control state


def command_line(vendor: str) -> str:
    """The program and names of a vendor's demonstration."""
    return "gcr demo" if vendor == VENDORS[0] else f"gcr --backend {vendor} demo"


def first_vendor() -> str:
    """Returns the vendor of a demonstration without --backend: the first with its Python packages installed.

    One vendor needs no packages, so a plain wheel can show a cycle.
    """
    return next(vendor for vendor in VENDORS if all(_is_installed(package) for package in PACKAGES[vendor]))


def install_hint(vendor: str) -> str:
    """Returns the command that installs what a vendor's demonstration lacks; it leaves gcr itself as it is."""
    return f"pip install 'gpu-cr[{vendor}]'"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # nor what it is a part of
        return False


class Step(Struct, frozen=True):
    """One thing that was done, whether it was as it should be, and what was seen."""

    name: str
    ok: bool
    detail: str


class Failed(RolledBack):
    """`gcr demo` saw something it should not have: report it."""

    code = "demo_failed"


class Lines(Struct):
    """The lines of a program as it prints them. Raises Failed at the deadline `until`."""

    source: IO[bytes]
    until: float
    _rest: bytes = b""

    def __iter__(self) -> Iterator[str]:
        while chunk := self._read():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from (line.decode() for line in lines)

    def _read(self) -> bytes:
        if not select.select([self.source], [], [], max(self.until - time.monotonic(), 0))[0]:
            raise Failed("the program printed nothing within the time that was left")
        return os.read(self.source.fileno(), 65536)


class Machine(Struct):
    """A vendor's simulated device, and gcr on it. `until` is the deadline, by the monotonic clock."""

    vendor: str
    folder: Path
    environment: Mapping[str, str]
    until: float
    job: "subprocess.Popen[bytes] | None" = None
    failed: bool = False

    @property
    def logs(self) -> Path:
        return Path(self.environment["XDG_STATE_HOME"], "gcr", "log")

    def gcr(self, *words: str) -> dict[str, Any]:
        """One gcr command's JSON object. Raises Failed with the message of its error."""
        said, complaints = self._output([sys.executable, "-m", "gcr", "--backend", self.vendor, "--json", *words])
        answer: dict[str, Any] = json.loads(said or "{}")
        if not answer.get("ok"):
            raise Failed(f"gcr {' '.join(words)}: {answer.get('error', {}).get('message', complaints)}")
        return answer

    def program(self, *words: str) -> str:
        """The last line of the program, run without gcr."""
        said, complaints = self._output([sys.executable, str(PROGRAM), self.vendor, *words])
        return ["nothing printed", *(said or complaints).splitlines()][-1]

    def used(self) -> int:
        """Bytes in use on the first device, by its own count."""
        used: int = self.gcr("devices")["devices"][0]["used_bytes"]
        return used

    def start_job(self) -> "Lines":
        command = [sys.executable, "-m", "gcr", "run", "--name", JOB, "--simulate", self.vendor, "--"]
        self.job = subprocess.Popen(
            [*command, sys.executable, str(PROGRAM), self.vendor, "work"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.job.stdout is not None
        return Lines(self.job.stdout, self.until)

    def left(self) -> float:
        return max(self.until - time.monotonic(), 0.1)

    def _output(self, command: list[str]) -> tuple[str, str]:
        """Its stdout and stderr: every line that the demonstration shows is its own, and says SIMULATED."""
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=self.left())
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command[1:])}: no end within the time that was left") from None
        return done.stdout, done.stderr


@contextmanager
def machine(vendor: str, timeout: float) -> Iterator[Machine]:
    """A fresh simulated machine with a daemon of its own; both are gone afterwards, but for the logs if it `failed`.

    Raises NativeMissing without the simulated driver, BackendMissing where its device cannot be used from here.
    """
    folder = Path(tempfile.mkdtemp(prefix="gcr-demo-"))
    keep: Path | None = None
    try:
        made = Machine(vendor, folder, _environment(vendor, folder), time.monotonic() + timeout)
        _check_bindings(made)
        try:
            yield made
        finally:
            keep = made.logs if _has_logs(made) else None
            _clean_up(made)
    finally:
        _remove(folder, keep)


def _check_bindings(made: Machine) -> None:
    """A simulated machine lacks nothing but what should be installed beside gcr. Raises BackendMissing."""
    (backend,) = made.gcr("backends")["backends"]
    for check in backend["capabilities"]:
        if check["needed"] and not check["ok"]:
            hint = install_hint(made.vendor) if check["name"] == "bindings" else f"gcr --backend {made.vendor} doctor"
            raise BackendMissing(f"{made.vendor}: {check['name']}: {check['evidence']}", hint=hint)


def _remove(folder: Path, keep: Path | None) -> None:
    for path in folder.iterdir():
        if keep is None or path not in keep.parents:
            shutil.rmtree(path)
    if keep is None:
        folder.rmdir()


def _environment(vendor: str, folder: Path) -> Mapping[str, str]:
    from gcr.supervisor.process import simulated_environment

    private = {name: str(folder / name.lower()) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    for path in private.values():
        Path(path).mkdir(mode=0o700)
    inherited = {name: value for name, value in os.environ.items() if name not in ("GCR_SOCKET", "GCR_SIM_STATE")}
    return {
        **inherited,
        **simulated_environment(vendor),
        **private,
        "GCR_SIM_STATE": str(folder / "machine"),
        "GCR_SIM_DEVICES": "1",
        "GCR_SIM_MEMORY": str(MEMORY),
    }


def _clean_up(made: Machine) -> None:
    made.until = time.monotonic() + CLEAN_UP_S
    if made.job:
        _end(made.job)
    made.gcr("daemon", "stop", "--force")


def _end(job: "subprocess.Popen[bytes]") -> None:
    job.terminate()
    try:
        job.wait(CLEAN_UP_S / 3)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait(CLEAN_UP_S / 3)
    for pipe in (job.stdin, job.stdout):
        if pipe:
            pipe.close()


def steps(timeout: float, vendor: str = "nvidia") -> Iterator[Step]:
    """Do the cycle; each step is handed out once it is done. The first that is not ok is the last."""
    with machine(vendor, timeout) as made:
        for step in _guarded(made):
            made.failed = not step.ok
            yield replace(step, detail=f"{step.detail} (logs: {made.logs})") if _has_logs(made) else step
            if made.failed:
                return


def _has_logs(made: Machine) -> bool:
    return made.failed and made.logs.exists()


def _guarded(made: Machine) -> Iterator[Step]:
    try:
        yield from _cycle(made)
    except GcrError as error:
        yield Step("demonstration", False, error.message)


def _cycle(made: Machine) -> Iterator[Step]:
    output = iter(made.start_job())
    reached = f"step {CHECKPOINT_AT}" in output
    yield Step("gcr run: the program computes", reached, f"at step {CHECKPOINT_AT}")
    busy = made.used()
    yield Step("the device's own count", busy > MEMORY - ROOM, f"{units.size(busy)} of {units.size(MEMORY)} in use")
    refused = made.program("allocate", str(ROOM))
    yield Step(f"another program wants {units.size(ROOM)}", refused == "no room", refused)
    yield from _swap(made)
    more, last = _let_end(made, output)
    yield Step("the program's digest", last.startswith("digest "), last)
    code = made.job.wait(made.left()) if made.job else None
    yield Step("the program's exit code", code == 0, str(code))
    expected = made.program("work", str(CHECKPOINT_AT + 1 + more))
    yield Step("as many steps without gcr", expected == last, expected)


def _let_end(made: Machine, output: Iterator[str]) -> tuple[int, str]:
    """Returns how many steps the program went further, and its last line."""
    assert made.job is not None and made.job.stdin is not None
    made.job.stdin.close()
    lines = list(output)
    return sum(line.startswith("step ") for line in lines), ["nothing printed", *lines][-1]


def _swap(made: Machine) -> Iterator[Step]:
    options, suspended = (("--data-only",), "data_suspended") if made.vendor in DATA_ONLY else ((), "suspended")
    report = made.gcr("checkpoint", JOB, *options)
    moved = f"{units.size(report['bytes'])}, strategy {report['strategy']}"
    yield Step(" ".join(("gcr checkpoint", *options)), report["state"] == suspended, moved)
    used = made.used()
    yield Step("the device's own count", used < MEMORY - ROOM, f"{units.size(used)} of {units.size(MEMORY)} in use")
    granted = made.program("allocate", str(ROOM))
    yield Step(f"another program wants {units.size(ROOM)}", granted == f"allocated {ROOM}", granted)
    restored = made.gcr("restore", JOB)
    yield Step("gcr restore", restored["state"] == "running", f"{units.size(restored['bytes'])} back")
