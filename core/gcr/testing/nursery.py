"""Peers without the start of an interpreter: a nursery has imported their code, and forks for each.

It has imported no backend, unless `import_first` names modules of one. What an interpreter or libc reads at its start
is that of the nursery. There is one for each such environment and what it imports.

    order   one packet: pickled [backend, environment, folder], and 4 descriptors: line, answer, stdout, stderr
    answer  a packet "PID" with a pidfd, and a packet "STATUS", as os.waitpid tells it, once the peer has ended
"""

import atexit
import mmap
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

ORDER_BYTES = 1 << 18
ENDING_SECONDS = 10.0
READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")
APART_PAGES = 1 << 16


# ---- the tests' side --------------------------------------------------------------------------------------------


class Child:
    """A forked process, as far as a test waits for it or ends it."""

    def __init__(self, answer: socket.socket) -> None:
        answer.settimeout(ENDING_SECONDS)
        packet, (self._pidfd,), _flags, _from = socket.recv_fds(answer, 32, 1)
        self.pid, self._answer = int(packet), answer
        self._code: int | None = None

    def wait(self, seconds: float) -> int:
        """Returns the exit code, negative for a signal. Raises TimeoutError."""
        if self._code is None:
            self._answer.settimeout(seconds)
            self._code = os.waitstatus_to_exitcode(int(self._answer.recv(32)))
            self._answer.close()
            os.close(self._pidfd)
        return self._code

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


_imported_first: dict[str, tuple[str, ...]] = {}


def import_first(backend: str, *modules: str) -> None:
    """Has a nursery import these modules for all later peers of this backend, which takes less time than in each.

    backend: as Peer gets it, `module:name`. The modules may start no thread; of what they load a peer has a copy. Where
    one cannot be imported, each peer tries, and tells.
    """
    _imported_first[backend] = modules


def begun(backend: str, environment: Mapping[str, str], line: socket.socket) -> Child:
    """Starts a peer with this whole environment at the other end of `line`."""
    at_the_start = tuple(sorted(item for item in environment.items() if item[0].startswith(READ_AT_THE_START)))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        order = pickle.dumps([backend, dict(environment), str(Path.cwd())])
        nursery = _nursery(at_the_start, _imported_first.get(backend, ()))
        socket.send_fds(nursery, [order], [line.fileno(), theirs.fileno(), 1, 2])
    return Child(ours)


@cache
def _nursery(at_the_start: tuple[tuple[str, str], ...], imported: tuple[str, ...]) -> socket.socket:
    """Returns the line to the nursery with these variables and modules, begun with its first peer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_THE_START)}
    with theirs:
        command = [sys.executable, "-m", "gcr.testing.peer_main", str(theirs.fileno()), *imported]
        process = subprocess.Popen(
            command, env=kept | dict(at_the_start), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    atexit.register(_end, ours, process)
    return ours


def _end(line: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    line.close()
    process.wait(ENDING_SECONDS)


# ---- the nursery ------------------------------------------------------------------------------------------------


class Running(Struct):
    pid: int
    answer: int


class Order(Struct):
    backend: str
    line: int
    apart: mmap.mmap  # kept as long as the peer runs


def next_order(line: socket.socket) -> Order:
    """Forks for each order, and returns it in the new process alone. Ends the nursery when the test leaves."""
    running: dict[int, Running] = {}  # by pidfd
    while True:
        for fd in select.select([line.fileno(), *running], [], [])[0]:
            if fd in running:
                _tell_end(fd, running.pop(fd))
                continue
            packet, fds, _flags, _from = socket.recv_fds(line, ORDER_BYTES, 4)
            if not packet:
                sys.exit(0)
            if not (pid := _fork()):
                return _become(packet, fds, [*running, *(each.answer for each in running.values())])
            _tell_start(pid, fds, running)


def _fork() -> int:
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in the new process"
    return os.fork()


def _tell_start(pid: int, fds: list[int], running: dict[int, Running]) -> None:
    line, answer, *streams = fds
    for fd in (line, *streams):
        os.close(fd)
    pidfd = os.pidfd_open(pid)
    running[pidfd] = Running(pid, answer)
    with socket.socket(fileno=os.dup(answer)) as told:
        socket.send_fds(told, [str(pid).encode()], [pidfd])


def _tell_end(pidfd: int, ended: Running) -> None:
    _, status = os.waitpid(ended.pid, 0)
    with suppress(BrokenPipeError):  # the test does not wait for it
        os.write(ended.answer, str(status).encode())
    os.close(ended.answer)
    os.close(pidfd)


def _become(packet: bytes, fds: list[int], of_others: list[int]) -> Order:
    backend, environment, folder = pickle.loads(packet)
    line, answer, *streams = fds
    for target, given in enumerate(streams, 1):
        os.dup2(given, target)
    for fd in (answer, *streams, *of_others):
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return Order(backend, line, _apart())


def _apart() -> mmap.mmap:
    """Shifts later mappings: siblings would find the same memory at the same addresses, which no two programs do."""
    return mmap.mmap(-1, random.randrange(1, APART_PAGES) * mmap.PAGESIZE, mmap.MAP_PRIVATE, 0)
