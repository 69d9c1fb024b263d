"""A node's end of a cluster: requests that come from another machine go to this node's own daemon, unchanged.

The daemon checks them as any client's. It knows nothing of a cluster, and of no other node.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from msgspec import Struct

from gcr.cluster.plugins import ANSWER, EVENT, NodeFacts, NodeJob, Word
from gcr.errors import typed
from gcr.library.answers import asked
from gcr.rendezvous.client import GRACE, Client
from gcr.version import __version__

START_S = 60.0


def start_daemon(environment: Mapping[str, str]) -> None:
    """Starts the daemon where none runs, by a command that ends: this process may take its children along.

    environment: that of a user of this node. Raises DaemonUnavailable, DeadlinePassed, UnsafeRuntime.
    """
    asked(["daemon", "start"], START_S, environment, "/")


def facts() -> NodeFacts:
    """Raises DaemonUnavailable."""
    with Client.connect(autostart=False) as client:
        jobs = tuple(NodeJob(job=each.job, state=each.state) for each in client.jobs().jobs)
        return NodeFacts(
            host=socket.gethostname(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            user=os.getuid(),
            version=__version__,
            daemon_pid=client.daemon_pid,
            jobs=jobs,
        )


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
            last = False
            while not last:
                word = words.get()
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
