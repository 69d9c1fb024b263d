"""Programs of gcr for tests without the start of an interpreter: a warm process forks each `python -m MODULE …`.

The warm process (warm_process.py) has imported gcr, has one thread, and forks for each order. The new process is one of
its own, with its pid, environment, folder, streams and exit status. It runs the same code as after `python -m`. `popen`
makes it a child of this process, also in /proc, with the limits and signals of this process. A command of `run` has the
limits and umask of the tests at the first order. The warm process has read what an interpreter or libc reads at its
start; where that is to differ, `run` and `popen` start a new interpreter. A world with a PYTHONPATH of its own has a
warm process of its own, once `expect` names it.

    order   one packet: JSON of an Order, and its descriptors: stdin, stdout, stderr, the answer, and those to pass on
    answer  a pipe: "PID\n" as soon as the process is there, and of a command "STATUS\n", as os.waitpid tells it, when
            it has ended
"""

import atexit
import os
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
from typing import Any

import warm_fork
from warm_popen import Order, WarmPopen, could_begin, send

PROGRAM = Path(__file__).with_name("warm_process.py")
ENDING_SECONDS = 10.0


def run(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    timeout: float,
    launches: bool = False,
    folder: Path | None = None,
) -> "subprocess.CompletedProcess[str]":
    """`python -m MODULE ARGUMENTS`, its output through pipes. launches: it starts a daemon. Raises TimeoutExpired."""
    if not (one := _warm_for(env)):
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=timeout)
    launches = launches and warm_fork.possible()
    return one.run(Order([module, *arguments], dict(env), str(folder or Path.cwd()), launches), timeout)


def popen(command: Sequence[str], **how: Any) -> "subprocess.Popen[str]":
    """Does the same as subprocess.Popen; forks programs of gcr from the warm process, as children of this one."""
    if not warm_fork.possible():
        return subprocess.Popen(command, **how)
    _warm_for(how.get("env") or os.environ)
    return WarmPopen(command, **how)


_expected: dict[str | None, str] = {os.environ.get("PYTHONPATH"): "nvidia"}


def expect(path: str, vendor: str) -> None:
    """Has programs with this PYTHONPATH forked, too: from a warm process that loads this vendor's backend."""
    _expected.setdefault(path, vendor)


@cache
def warm(path: str | None) -> "Warm":
    """The warm process of this PYTHONPATH, begun with the first command that has it."""
    usual = {**os.environ, **({"PYTHONPATH": path} if path is not None else {})}
    made = Warm(_expected[path], usual)
    atexit.register(made.close)
    return made


def _warm_for(env: Mapping[str, str]) -> "Warm | None":
    """Returns the warm process that forks programs of this environment."""
    path = env.get("PYTHONPATH")
    return warm(path) if path in _expected and could_begin(env, warm(path).usual) else None


@dataclass
class Warm:
    """The warm process."""

    vendor: str
    usual: Mapping[str, str]  # its environment
    line: socket.socket = field(init=False)
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, str(PROGRAM), str(fd), self.vendor]
            self.process = subprocess.Popen(command, env=self.usual, pass_fds=[fd])
        WarmPopen.use(self.line, self.usual)

    def run(self, order: Order, timeout: float) -> "subprocess.CompletedProcess[str]":
        end = time.monotonic() + timeout
        with _pipe() as out, _pipe() as err, _pipe() as answer:
            send(self.line, order, [0, out[1], err[1]], answer[1])
            for pipe in (out, err, answer):
                os.close(pipe.pop())
            said = _drain([out[0], err[0], answer[0]], end)
        pid, _, status = said[2].decode().partition("\n")
        if not status:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired(order.words, timeout, said[0], said[1])
        code = os.waitstatus_to_exitcode(int(status))
        return subprocess.CompletedProcess(order.words, code, _text(said[0]), _text(said[1]))

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
