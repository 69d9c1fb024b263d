"""The orders to a warm process, and a subprocess.Popen whose programs of gcr are forked by it (see warm.py)."""

import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from gcr.native import sim_dir

ORDER_BYTES = 1 << 18
MOST_DESCRIPTORS = 16
PROGRAMS = ("gcr", "gcr.daemon", "gcr.worker", "gcr.control_helper", "gcr.image_helper", "gcr.criu_helper")
READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ")
SET_LATER = ("MALLOC_PERTURB_", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED")  # the new process sees to them itself
DRIVERS: Mapping[str, Sequence[str]] = {  # of each vendor: the libraries that its backend loads by their names
    "nvidia": ("libcuda.so.1", "libnvidia-ml.so.1"),
    "amd": ("libamdhip64.so.7", "librocm_smi64.so"),  # hip-python finds libamdhip64.so by ROCM_PATH
    "ascend": ("libascendcl.so", "libacl_rt.so", "libruntime.so", "libdcmi.so"),
}
DEFAULTS: Mapping[str, object] = {"preexec_fn": None, "shell": False, "close_fds": True, "uid": None, "gid": None}
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_PARAMETERS = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Order:
    """A program to fork.

    words: module and arguments, or `-c` and a text · launches: the program starts programs of gcr
    passed: the new number of each descriptor
    sibling: a child of the warm process's parent, which takes over that one's limits and signals
    """

    words: list[str]
    environment: dict[str, str]
    folder: str
    launches: bool = False
    sibling: bool = False
    session: bool = False
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    ignored: list[int] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)
    passed: dict[int, int] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)
    answer: int = -1


def send(line: socket.socket, order: Order, streams: Sequence[int], answer: int) -> None:
    socket.send_fds(line, [json.dumps(asdict(order)).encode()], [*streams, answer, *order.passed])


def receive(line: socket.socket) -> Order | None:
    """Returns the next order. None: the caller has left."""
    packet, fds, _, _ = socket.recv_fds(line, ORDER_BYTES, MOST_DESCRIPTORS)
    if not packet:
        return None
    facts = json.loads(packet)
    facts["passed"] = dict(zip(map(int, facts["passed"]), fds[4:], strict=True))
    facts["limits"] = {int(limit): tuple(value) for limit, value in facts["limits"].items()}
    return Order(**{**facts, "streams": fds[:3], "answer": fds[3]})


def read_at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what an interpreter or libc reads at its start, and the warm process cannot make up for."""
    read = {name: value for name, value in env.items() if name.startswith(READ_AT_THE_START)}
    for name in SET_LATER:
        read.pop(name, None)
    return read


def leads_to(env: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Returns the vendor whose simulated driver comes first on the search path, and "" for the path of `other`.

    None: the path is another one again.
    """
    path, usual = env.get("LD_LIBRARY_PATH"), other.get("LD_LIBRARY_PATH")
    if path == usual:
        return ""
    rest = f":{usual}" if usual else ""
    return next((vendor for vendor in DRIVERS if path == f"{sim_dir(vendor)}{rest}"), None)


def could_begin(env: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Returns whether a process forked from one of the environment `usual` can be as if begun with `env`."""
    return read_at_the_start(env) == read_at_the_start(usual) and leads_to(env, usual) is not None


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Programs of gcr are forked by a warm process, all others are started as ever."""

    lines: ClassVar[dict[str | None, tuple[socket.socket, Mapping[str, str]]]] = {}
    """By PYTHONPATH: the line to a warm process, and its environment."""

    owner: ClassVar[int] = 0  # the pid whose children the warm processes make, 0 before the first is begun

    @classmethod
    def use(cls, line: socket.socket, usual: Mapping[str, str]) -> None:
        cls.owner = os.getpid()
        cls.lines[usual.get("PYTHONPATH")] = (line, usual)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        asked = dict(zip(_PARAMETERS, (args, *rest), strict=True))
        if (line := self._line(asked["args"], asked["env"] or os.environ, asked)) is None:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        self.pid = _forked(line, asked)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in ends))  # type: ignore[attr-defined]

    def _line(self, words: Sequence[str], env: Mapping[str, str], asked: Mapping[str, Any]) -> socket.socket | None:
        """Returns the line to a warm process that can fork this program; None: it is to be started."""
        known = list(words[:2]) == [sys.executable, "-m"] and words[2] in PROGRAMS and is_plain(asked)
        if not known or os.getpid() != self.owner:
            return None
        line, usual = self.lines.get(env.get("PYTHONPATH"), (None, {}))
        return line if line and could_begin(env, usual) else None


def is_plain(asked: Mapping[str, Any]) -> bool:
    """Returns whether it has none of the arguments of subprocess.Popen that a warm process does not know."""
    return all(asked[name] == default for name, default in DEFAULTS.items())


def _forked(line: socket.socket, asked: Mapping[str, Any]) -> int:
    given = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
    streams = [number if fd == -1 else fd for number, fd in enumerate(given)]
    reading, writing = os.pipe()
    try:
        send(line, _order(asked), streams, writing)
        os.close(writing)
        return int(os.read(reading, 32))
    finally:
        os.close(reading)


def _order(asked: Mapping[str, Any]) -> Order:
    words, env = list(asked["args"]), asked["env"] or os.environ
    return Order(
        words[2:] if words[1] == "-m" else words[1:],
        dict(env),
        os.fspath(asked["cwd"] or os.getcwd()),  # noqa: PTH109
        launches=words[2] in ("gcr", "gcr.daemon"),
        sibling=True,
        session=asked["start_new_session"],
        limits={limit: resource.getrlimit(limit) for limit in LIMITS},
        ignored=[number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        blocked=list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        passed={fd: fd for fd in asked["pass_fds"]},
    )
