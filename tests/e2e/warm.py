"""Commands for tests without the start of an interpreter: a warm process forks each `python -m MODULE …`.

Run as a program, this is the warm process. It has imported the command line of gcr, has one thread, and forks for each
order. A command is a process of its own, with its pid, environment, folder, streams and exit status; it runs the same
code as after `python -m`. Limits and umask are those of the tests at the first command. What the interpreter or libc
reads at its start is that of the warm process: where it is to differ, `run` starts a new interpreter.

    order   one packet: JSON [arguments, environment, folder], and 4 descriptors: stdin, stdout, stderr, the answer
    answer  a pipe: "PID\n" as soon as the command is there, and "STATUS\n", as os.waitpid tells it, once it has ended
"""

import atexit
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ORDER_BYTES = 1 << 18
ENDING_SECONDS = 10.0
READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")
# Loaded by commands while they run.
LAZY = (
    "gcr.rendezvous.client",
    "gcr.rendezvous.launch",
    "gcr.library.calls",
    "gcr.listing",
    "gcr.plugins",
    "gcr.job.runs",
    "rich.console",
)


# ---- the tests' side --------------------------------------------------------------------------------------------


def run(module: str, *arguments: str, env: Mapping[str, str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """`python -m MODULE ARGUMENTS`, its output through pipes. Raises subprocess.TimeoutExpired."""
    if not warm().knows(env):
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    return warm().run([module, *arguments], env, timeout)


def _at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_THE_START)}


@cache
def warm() -> "Warm":
    """The one of this process, begun with its first command."""
    made = Warm()
    atexit.register(made.close)
    return made


@dataclass
class Warm:
    """The warm process."""

    line: socket.socket = field(init=False)
    process: "subprocess.Popen[bytes]" = field(init=False)
    at_the_start: dict[str, str] = field(default_factory=lambda: _at_the_start(os.environ))

    def __post_init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen([sys.executable, __file__, str(fd)], pass_fds=[fd])

    def knows(self, env: Mapping[str, str]) -> bool:
        return _at_the_start(env) == self.at_the_start

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> "subprocess.CompletedProcess[str]":
        end = time.monotonic() + timeout
        with _pipe() as out, _pipe() as err, _pipe() as answer:
            order = json.dumps([list(words), dict(env), str(Path.cwd())]).encode()
            socket.send_fds(self.line, [order], [0, out[1], err[1], answer[1]])
            for pipe in (out, err, answer):
                os.close(pipe.pop())
            said = _drain([out[0], err[0], answer[0]], end)
        pid, _, status = said[2].decode().partition("\n")
        if not status:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout, said[0], said[1])
        code = os.waitstatus_to_exitcode(int(status))
        return subprocess.CompletedProcess(words, code, _text(said[0]), _text(said[1]))

    def close(self) -> None:
        self.line.close()
        self.process.wait(ENDING_SECONDS)


@contextmanager
def _pipe() -> Iterator[list[int]]:
    """Both ends; those that are still in the list are closed in the end."""
    ends = list(os.pipe())
    try:
        yield ends
    finally:
        for fd in ends:
            os.close(fd)


def _drain(fds: Sequence[int], end: float) -> list[bytes]:
    """Returns the bytes of each descriptor until all are at their end, or until the time `end`."""
    said = dict.fromkeys(fds, b"")
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    missing = len(fds)
    while missing and (left := end - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            if not (more := os.read(fd, 1 << 16)):
                poll.unregister(fd)
                missing -= 1
            said[fd] += more
    return list(said.values())


def _text(said: bytes) -> str:
    return said.decode().replace("\r\n", "\n").replace("\r", "\n")


# ---- the warm process -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]
    answer: int


def _receive(line: socket.socket) -> Order | None:
    """The next one. None: the caller has left."""
    packet, fds, _, _ = socket.recv_fds(line, ORDER_BYTES, 4)
    if not packet:
        return None
    *streams, answer = fds
    return Order(*json.loads(packet), streams, answer)


def serve(line: socket.socket) -> Order:
    """Forks for each order, and returns it in the new process alone. Ends the warm process when the caller leaves."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and where the answer goes
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                poll.unregister(fd)
                _tell_end(fd, *running.pop(fd))
            elif (order := _receive(line)) is None:
                sys.exit(0)
            elif pid := _fork():
                poll.register(_begun(order, pid, running), select.POLLIN)
            else:
                line.detach()
                return order


def _fork() -> int:
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in the new process"
    return os.fork()


def _begun(order: Order, pid: int, running: dict[int, tuple[int, int]]) -> int:
    for fd in order.streams:
        os.close(fd)
    os.write(order.answer, f"{pid}\n".encode())
    pidfd = os.pidfd_open(pid)
    running[pidfd] = (pid, order.answer)
    return pidfd


def _tell_end(pidfd: int, pid: int, answer: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # after the caller's deadline
        os.write(answer, f"{status}\n".encode())
    os.close(answer)
    os.close(pidfd)


def become(order: Order) -> None:
    """Makes of this process what a new interpreter would be."""
    for fd, given in enumerate(order.streams):
        os.dup2(given, fd)
    os.closerange(3, 1 << 20)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    _reopen_streams()
    sys.path[0] = order.folder
    sys.argv = ["-m", *order.words[1:]]
    sys.orig_argv = [sys.executable, "-m", *order.words]


def _reopen_streams() -> None:
    """New ones: the old ones remember whether theirs could seek, and whether it was a terminal."""
    sys.stdin = sys.__stdin__ = _stream(0, "rb", sys.stdin, None)
    sys.stdout = sys.__stdout__ = _stream(1, "wb", sys.stdout, "\n")
    sys.stderr = sys.__stderr__ = _stream(2, "wb", sys.stderr, "\n")


def _stream(fd: int, mode: str, old: io.TextIOWrapper, newline: str | None) -> io.TextIOWrapper:
    """Opens a stream as CPython does (create_stdio in pylifecycle.c)."""
    raw = old.write_through  # with PYTHONUNBUFFERED
    binary = open(fd, mode, buffering=0 if raw and fd else -1, closefd=False)  # noqa: SIM115
    lines = not raw and (binary.isatty() or fd == 2)
    new = io.TextIOWrapper(binary, old.encoding, old.errors, newline, line_buffering=lines, write_through=raw)
    getattr(binary, "raw", binary).name = old.name
    new.mode = mode[0]
    return new


def _load() -> None:
    import gcr.cli.commands
    import gcr.cli.main

    names = [f"gcr.cli.commands.{found.name}" for found in pkgutil.iter_modules(gcr.cli.commands.__path__)]
    for name in (*names, *LAZY):
        importlib.import_module(name)


if __name__ == "__main__":
    _load()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    become(order)
    runpy.run_module(order.words[0], run_name="__main__", alter_sys=True)
