"""A node's end of a cluster: requests that come from another machine go to this node's own daemon, unchanged.

The daemon checks them as any client's. It knows nothing of a cluster, and of no other node.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from msgspec import Struct

from gcr.cluster import exchanges
from gcr.cluster.hardware import Hardware
from gcr.cluster.plugins import ANSWER, EVENT, RUN, NodeFacts, NodeJob, Program, Word
from gcr.errors import DeadlinePassed, UsageError, typed
from gcr.library.answers import asked
from gcr.processes import descendants
from gcr.rendezvous.client import GRACE, Client
from gcr.version import __version__

START_S = 60.0
LATE_S = 5.0  # beyond the deadline of the client, which answers by itself


def start_daemon(environment: Mapping[str, str]) -> None:
    """Starts the daemon where none runs, by a command that ends: this process may take its children along.

    environment: that of a user of this node. Raises DaemonUnavailable, DeadlinePassed, UnsafeRuntime.
    """
    asked(["daemon", "start"], START_S, environment, "/")


def facts(hardware: Hardware) -> NodeFacts:
    """Raises DaemonUnavailable, UnsafeRuntime, OSError."""
    with Client.connect(autostart=False) as client:
        jobs = tuple(NodeJob(job=each.job, state=each.state) for each in client.jobs().jobs)
        return NodeFacts(
            host=socket.gethostname(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            user=os.getuid(),
            version=__version__,
            daemon_pid=client.daemon_pid,
            jobs=jobs,
            exchange=exchanges.address(),
            devices=hardware.devices,
            drivers=hardware.drivers,
        )


def started(job: str, program: Program, environment: Mapping[str, str]) -> str:
    """Starts a part of a job on this node, detached, and returns the path of its log. Raises as `gcr run`; UsageError.

    environment: that of a user of this node
    """
    if not Path(program.folder).is_dir():
        raise UsageError(f"this node has no folder {program.folder}", hint="one folder that all nodes have")
    variables = {**environment, **program.variables}
    begun = asked(["run", "-d", "--name", job, "--", *program.words], START_S, variables, program.folder)
    return str(begun["log"])


def end(job: str, run: str) -> None:
    """Ends by SIGTERM the processes of a job that were started with this run's id. Raises DaemonUnavailable.

    Each has the id in its environment: so the end needs no memory of the start. Where none has used a device
    yet, the daemon knows the program alone.
    """
    with Client.connect(autostart=False) as client:
        found = next((each for each in client.jobs().jobs if each.job == job), None)
    roots = {found.pid, *(row.pid for row in found.processes)} - {None} if found else set()
    for pid in {pid for root in roots if root for pid in (root, *descendants(root))}:
        with suppress(ProcessLookupError, PermissionError):
            if _is_of(pid, run):
                os.kill(pid, signal.SIGTERM)


def _is_of(pid: int, run: str) -> bool:
    """Raises ProcessLookupError, PermissionError."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    return f"{RUN}={run}".encode() in words


class Carrier:
    """Requests under way on this node. Thread-safe."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._lock = Lock()

    def carried(self, token: str, op: str, body: Mapping[str, Any], timeout: float) -> Iterator[Word]:
        """Yields the daemon's words, the last one an answer or an error.

        token: names the request, for `withdraw` · timeout: seconds that the daemon may take, then DeadlinePassed
        """
        try:
            client = Client.connect(autostart=False)
        except Exception as error:
            yield Word.of_error(typed(error))
            return
        with client, self._under_way(token, client):
            words = SimpleQueue[Word]()
            Thread(target=_Asking(client, words.put).ask, args=(op, body, timeout), daemon=True).start()
            end, last = time.monotonic() + timeout + GRACE + LATE_S, False
            while not last:
                word = _next(words, end)
                last = word.is_last
                yield word

    def withdraw(self, token: str) -> None:
        """Leaves the daemon, as a client that ends does: what is not decided is taken back."""
        with self._lock:
            client = self._clients.get(token)
        if client:
            client.close()

    @contextmanager
    def _under_way(self, token: str, client: Client) -> Iterator[None]:
        with self._lock:
            self._clients[token] = client
        try:
            yield
        finally:
            with self._lock:
                self._clients.pop(token, None)


def _next(words: SimpleQueue[Word], end: float) -> Word:
    """Returns the next word, or an error where none has come in time: else its thread would be taken for good."""
    try:
        return words.get(timeout=max(0.0, end - time.monotonic()))
    except Empty:
        return Word.of_error(DeadlinePassed("the daemon has not answered in time"))


class _Asking(Struct, frozen=True):
    client: Client
    tell: Callable[[Word], None]

    def ask(self, op: str, body: Mapping[str, Any], timeout: float) -> None:
        try:
            answer = self.client.request(op, body, timeout=timeout + GRACE, on_progress=self.event)
            self.tell(Word(ANSWER, answer))
        except Exception as error:
            self.tell(Word.of_error(typed(error)))

    def event(self, body: dict[str, Any]) -> None:
        self.tell(Word(EVENT, body))
