"""The warm process (see warm.py): a program that has imported gcr, has one thread, and forks for each order.

A supervisor or a daemon starts programs of gcr, too. Each has a warm process of its own: a child, forked before the
supervisor or the daemon runs any code, which ends with it.
"""

import gcr.starting as starting

# isort: split
import ctypes
import fcntl
import importlib
import io
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import warm_fork
from warm_popen import DRIVERS, Order, WarmPopen, leads_to, receive

from gcr.native import sim_dir

PROGRAMS = ("gcr.daemon", "gcr.worker", "gcr.control_helper", "gcr.image_helper", "gcr.criu_helper")
# Loaded by programs while they run.
LAZY = (
    "gcr.rendezvous.client",
    "gcr.rendezvous.launch",
    "gcr.library.calls",
    "gcr.listing",
    "gcr.plugins",
    "gcr.job.runs",
    "gcr.supervisor.process",
    "rich.console",
    "tomllib",
    "gcr.cli.parts",
)
BACKENDS = {
    "nvidia": ("gcr_nvidia.backend", "cuda.bindings.driver", "pynvml"),
    "amd": ("gcr_amd.backend", "hip"),
    "ascend": ("gcr_ascend.backend",),
}
HIGH = 512  # descriptors from here on are none that an order names
USUAL = dict(os.environ)  # what libc and the interpreter read at their start


def orders(line: socket.socket) -> tuple[Order, socket.socket | None]:
    """Forks for each order. Returns it in the new process alone, with the line to that one's own warm process."""
    order = serve(line)
    if not order.launches:
        return order, None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if warm_fork.fork():
        theirs.close()
        return order, ours
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    return orders(socket.socket(fileno=_keep([nothing, nothing, nothing], {HIGH: theirs.detach()})[HIGH]))


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
            elif (order := receive(line)) is None:
                os._exit(0)
            elif pid := (warm_fork.fork_sibling if order.sibling else warm_fork.fork)():
                if pidfd := _begun(order, pid):
                    running[pidfd] = (pid, order.answer)
                    poll.register(pidfd, select.POLLIN)
            else:
                line.close()
                os.close(order.answer)
                return order


def _begun(order: Order, pid: int) -> int | None:
    """Returns what tells the end of a command; None for a sibling, for which its own parent waits."""
    for fd in (*order.streams, *order.passed.values()):
        os.close(fd)
    os.write(order.answer, f"{pid}\n".encode())
    if order.sibling:
        os.close(order.answer)
        return None
    return os.pidfd_open(pid)


def _tell_end(pidfd: int, pid: int, answer: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # after the caller's deadline
        os.write(answer, f"{status}\n".encode())
    os.close(answer)
    os.close(pidfd)


# ---- the new process --------------------------------------------------------------------------------------------


def become(order: Order, line: socket.socket | None) -> None:
    """Makes of this process what a new interpreter would be."""
    passed = {**order.passed, **({HIGH: line.detach()} if line else {})}
    _keep(order.streams, passed)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    warm_fork.overwrite_freed(order.environment.get("MALLOC_PERTURB_", ""))
    _reopen_streams()
    sys.path[0] = order.folder
    is_text = order.words[0] == "-c"
    sys.argv = ["-c"] if is_text else ["-m", *order.words[1:]]
    sys.orig_argv = [sys.executable, *([] if is_text else ["-m"]), *order.words]
    if vendor := leads_to(order.environment, USUAL):
        for name in DRIVERS[vendor]:
            ctypes.CDLL(str(sim_dir(vendor) / name))
    if warm_fork.possible():  # also for a command: what it leaves running looks like this
        warm_fork.show(sys.orig_argv, order.environment)
    if order.sibling:
        _inherit(order)
    if line:
        WarmPopen.use(socket.socket(fileno=HIGH), USUAL)
        subprocess.Popen = WarmPopen  # type: ignore[misc]


def _keep(streams: list[int], passed: dict[int, int]) -> dict[int, int]:
    """Puts descriptors where the new process has them, and closes all others. Returns the places of `passed`."""
    high = {place: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH + 1) for place, fd in passed.items()}
    for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH + 1) for fd in streams]):
        os.dup2(fd, number)
    os.closerange(3, HIGH + 1)
    for place, fd in high.items():
        os.dup2(fd, place, inheritable=place != HIGH)
    os.closerange(HIGH + 1, 1 << 20)
    return {place: place for place in passed}


def _inherit(order: Order) -> None:
    """Takes over what a new process has of the one that starts it."""
    if order.session:
        os.setsid()
    for limit, value in order.limits.items():
        resource.setrlimit(limit, value)
    for number in order.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, order.blocked)


def _reopen_streams() -> None:
    """New ones: the old ones remember whether theirs could seek, and whether it was a terminal."""
    sys.stdin = sys.__stdin__ = _stream(0, "rb", sys.stdin, None)
    sys.stdout = sys.__stdout__ = _stream(1, "wb", sys.stdout, "\n")
    sys.stderr = sys.__stderr__ = _stream(2, "wb", sys.stderr, "\n")


def _stream(fd: int, mode: str, old: io.TextIOWrapper, newline: str | None) -> io.TextIOWrapper:
    """Opens a stream as CPython does (create_stdio in pylifecycle.c)."""
    raw = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary = open(fd, mode, buffering=0 if raw and fd else -1, closefd=False)  # noqa: SIM115
    lines = not raw and (binary.isatty() or fd == 2)
    new = io.TextIOWrapper(binary, old.encoding, old.errors, newline, line_buffering=lines, write_through=raw)
    getattr(binary, "raw", binary).name = old.name
    new.mode = mode[0]
    return new


def load(vendor: str) -> None:
    import gcr.cli.commands
    import gcr.cli.main

    names = [f"gcr.cli.commands.{found.name}" for found in pkgutil.iter_modules(gcr.cli.commands.__path__)]
    for name in (*names, *LAZY, *BACKENDS[vendor]):
        importlib.import_module(name)
    for name in PROGRAMS:  # each runs anew, as __main__
        importlib.import_module(f"{name}.__main__")
        del sys.modules[f"{name}.__main__"]
    starting.imported()


if __name__ == "__main__":
    load(sys.argv[2])
    order, line = orders(socket.socket(fileno=int(sys.argv[1])))
    become(order, line)
    runpy.run_module(order.words[0], run_name="__main__", alter_sys=True)
