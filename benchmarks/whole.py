"""Whole processes: a job that ends and comes back from its image, and the same by CRIU alone with its plugin for CUDA.

`whole-8`, `whole-32`: gcr, a generation for each of WAYS, restored to the first right answer of the program.
`whole-context`: the same of the program with hardly any device memory (the pages of the host and the context alone).
`criu-8`: CRIU and the driver's own checkpoint, of the programs of `whole-context` and `whole-8`; `criu-context`: of the
first alone. They need GCR_BENCHMARK_CRIU, a folder with CRIU's `cuda_plugin.so` and NVIDIA's `cuda-checkpoint`; neither
is part of gcr. The program speaks through a named pipe and a file.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import images
import testbed
from program import ANSWER_SECONDS, COMMAND_SECONDS, GCR, START_SECONDS, gcr, stop_daemon

from gcr.criu import program as criu

JOB = "whole"
WAYS = ("as written", "page cache", "cold")  # the files at the restore: past the page cache, in it, dropped from it
CHANGED = 0.01
SHELL = 'cd "$0"; exec "$@" <lines >>answers 2>>errors'
LOOK_SECONDS = 0.002
READ_BYTES = 64 << 20
GONE_SECONDS = 30.0
SETTLE_SECONDS = 3.0
CONTEXT_GIB = 1 / 64  # so little that host pages and context are nearly all
ANCHOR = "GCR_BENCHMARK_CRIU"
OUT = (
    "bytes",
    "bytes_total",
    "bytes_written",
    "total_s",
    "durable_s",
    "vram_free_s",
    "phases_s",
    "processes_s",
    "cli_wall_s",
)
Row = dict[str, Any]
Used = Callable[[], int]
UsedThere = Callable[[str], int]


class Spoken:
    """A program that is spoken to through files in a folder, and may end and come back. `job`: False for a bare one."""

    def __init__(self, command: Sequence[str], folder: Path, job: bool, flags: Sequence[str] = ()) -> None:
        os.mkfifo(folder / "lines")
        self._lines = os.open(folder / "lines", os.O_RDWR | os.O_CLOEXEC)
        self._answers, self._heard = folder / "answers", 0
        self._job, self._bare = job, None
        words = ["sh", "-c", SHELL, str(folder), *command]
        if job:
            subprocess.run(
                [*GCR, "run", "-d", "--name", JOB, *flags, "--", *words], check=True, timeout=COMMAND_SECONDS
            )
        else:
            null = subprocess.DEVNULL
            self._bare = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
        self._hear(START_SECONDS)
        self.pid = self._bare.pid if self._bare else int(row()["pid"])

    def ask(self, line: str = "digest") -> str:
        os.write(self._lines, f"{line}\n".encode())
        return self._hear(ANSWER_SECONDS)

    def await_end(self) -> None:
        """Ends the benchmark if the process does not end."""
        end = time.monotonic() + GONE_SECONDS
        while Path(f"/proc/{self.pid}").exists():
            if self._bare:
                self._bare.poll()
            if time.monotonic() > end:
                raise SystemExit(f"benchmark: process {self.pid} lives on")
            time.sleep(LOOK_SECONDS)

    def _hear(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while len(said := self._said()) <= self._heard:
            if time.monotonic() > end:
                raise SystemExit(f"benchmark: no answer in {seconds:.0f} s: {self._last_words()}")
            time.sleep(LOOK_SECONDS)
        self._heard += 1
        return said[self._heard - 1]

    def _said(self) -> list[str]:
        text = self._answers.read_text() if self._answers.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def _last_words(self) -> str:
        return self._answers.with_name("errors").read_text()[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._bare:
            self._bare.wait()
        os.close(self._lines)


def row() -> Row:
    (found,) = (job for job in gcr("ps")["jobs"] if job["job"] == JOB)
    return dict(found)


def measure(command: Sequence[str], flags: Sequence[str] = (), used: Used = testbed.used_bytes) -> Iterator[Row]:
    """Yields the generations so far. `flags`: of `gcr run` · `used`: bytes in use on the device."""
    known: Row = {"generations": []}
    stop_daemon()
    empty = used()
    with folder() as place, Spoken(command, place, job=True, flags=flags) as running:
        time.sleep(SETTLE_SECONDS)
        known["memory"] = memory_of(running.pid)
        where = ("--store", str(place / "store"))
        for number, way in enumerate(WAYS):
            said = running.ask(f"touch {CHANGED} {number + 1}") if number else running.ask()
            began = time.monotonic()
            out = gcr("checkpoint", JOB, "--image", f"g{number}", "--stop", *where)
            running.await_end()
            gone_s, left = time.monotonic() - began, used() - empty
            _bring_to(way, place / "store" / "packs")
            began = time.monotonic()
            back = gcr("restore", "--image", f"g{number}", *where)
            right = running.ask() == said
            answered_s = time.monotonic() - began
            found = {"gone_s": gone_s, "left_on_device": left, "way": way, "answered_s": answered_s, "right": right}
            known["generations"].append({**found, "out": _of(out), "back": _of(back)})
            yield known


def onto_others(command: Sequence[str], devices: tuple[str, str], used: UsedThere, flags: Sequence[str] = ()) -> Row:
    """Stops a job three times, and brings it back on the other of two devices each time.

    used: bytes in use on a device, by its own count
    """
    known: Row = {"generations": []}
    stop_daemon()
    empty = {device: used(device) for device in devices}
    with folder() as place, Spoken(command, place, job=True, flags=flags) as running:
        time.sleep(SETTLE_SECONDS)
        where, (here, there) = ("--store", str(place / "store")), devices
        for number in range(len(WAYS)):
            said = running.ask(f"touch {CHANGED} {number + 1}") if number else running.ask()
            gcr("checkpoint", JOB, "--image", f"g{number}", "--stop", *where)
            running.await_end()
            stop_daemon()  # its workers have contexts
            left = {device: used(device) - empty[device] for device in devices}
            gcr("restore", "--image", f"g{number}", "--device", f"{here}={there}", *where)
            right = running.ask() == said
            came = {device: used(device) - empty[device] for device in devices}
            known["generations"].append({"onto": there, "right": right, "left_bytes": left, "came_bytes": came})
            here, there = there, here
    return known


def by_criu(programs: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yields what CRIU took for each program so far, by name; it writes to the page cache of the same disk."""
    tools, known = Path(os.environ.get(ANCHOR, "")), Row()
    if not (tools / "cuda_plugin.so").exists():
        raise testbed.Unsuitable(f"benchmark: {ANCHOR} names no folder with cuda_plugin.so")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for name, command in programs.items():
        with folder() as place, Spoken(command, place, job=False) as running:
            time.sleep(SETTLE_SECONDS)
            known[name] = {"memory": memory_of(running.pid)}
            for way in WAYS[1:]:
                known[name][way] = _there_and_back(running, place / way, tools, environment)
                yield known


def _there_and_back(running: Spoken, dump: Path, tools: Path, environment: Mapping[str, str]) -> Row:
    said, common = running.ask(), ["--images-dir", str(dump), "--libdir", str(tools), "--timeout", "240", "-v3"]
    dump.mkdir()
    out_s = _criu(["dump", "--tree", str(running.pid), *common, "-o", "dump.log"], environment)
    running.await_end()
    began = time.monotonic()
    os.sync()
    synced_s = out_s + time.monotonic() - began
    _bring_to(dump.name, dump)
    began = time.monotonic()
    back_s = _criu(["restore", "--restore-detached", *common, "-o", "restore.log"], environment)
    right = running.ask() == said
    answered_s, written = time.monotonic() - began, sum(path.stat().st_size for path in dump.iterdir())
    found = {"out_s": out_s, "synced_s": synced_s, "back_s": back_s, "answered_s": answered_s}
    return {**found, "right": right, "bytes": written}


def _bring_to(way: str, folder: Path) -> None:
    if way == "cold":
        images.drop_caches()
    if way == "page cache":
        for path in folder.iterdir():
            with path.open("rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass


def _criu(words: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(
        [criu.find(), *words], env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if done.returncode:
        log = Path(words[words.index("--images-dir") + 1], words[-1])
        said = log.read_text()[-3000:] if log.exists() else done.stderr
        raise SystemExit(f"benchmark: criu {words[0]} ended with {done.returncode}: {said}")
    return time.monotonic() - began


def memory_of(pid: int) -> Mapping[str, int]:
    """Returns bytes of a process in memory, of each kind that the kernel tells apart."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name: int(value.split()[0]) << 10 for name, _, value in lines if value.split()[-1:] == ["kB"]}


@contextmanager
def folder() -> Iterator[Path]:
    parent = os.environ.get("GCR_BENCHMARK_STORE", tempfile.gettempdir())
    made = Path(tempfile.mkdtemp(dir=parent, prefix="gcr-whole-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _of(report: Row) -> Row:
    return {name: report[name] for name in OUT if name in report}
