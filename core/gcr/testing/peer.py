"""A child process that holds a backend, and the handle a test has on it.

One SOCK_SEQPACKET packet a request and a reply, pickled (both ends are ours), descriptors beside them as SCM_RIGHTS.
"""

import os
import pickle
import socket
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from gcr.protocol.jsonbody import error_from_json
from gcr.testing.nursery import begun

CALL_SECONDS = 30.0
LAST_WORDS_SECONDS = 5.0
MAX_PACKET = 1 << 16
MAX_DESCRIPTORS = 253


class PeerDied(Exception):
    """The child ended, or answered something other than an error of gcr's: the backend broke its contract."""


class Peer:
    """A child process with a backend of its own. `call` runs one public method of `gcr.testing.serving` there."""

    def __init__(self, backend: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            path = os.pathsep.join(filter(None, sys.path))
            self._process = begun(backend, {**os.environ, "PYTHONPATH": path, **environment}, theirs)
        self._socket = ours
        self._socket.settimeout(CALL_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, method: str, *arguments: object, fds: Sequence[int] = ()) -> Any:
        """The method's result. Raises the GcrError it raised, PeerDied for anything else, TimeoutError."""
        return self.exchange(method, *arguments, fds=fds)[0]

    def exchange(self, method: str, *arguments: object, fds: Sequence[int] = ()) -> tuple[Any, list[int]]:
        """The method's result and the descriptors it sent, which the caller closes."""
        socket.send_fds(self._socket, [pickle.dumps((method, arguments))], list(fds))
        packet, received, _flags, _from = socket.recv_fds(self._socket, MAX_PACKET, MAX_DESCRIPTORS)
        if not packet:
            raise PeerDied(f"{method}: the child ended with {self._process.wait(CALL_SECONDS)}")
        kind, value = pickle.loads(packet)
        if kind == "gcr":
            raise error_from_json(value)
        if kind == "foreign":
            raise PeerDied(f"{method} raised no error of gcr's:\n{value}")
        return value, received

    def kill(self) -> None:
        """Kills the peer as a crash would: no handler runs."""
        self._process.kill()
        self._process.wait(CALL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()
        try:
            self._process.wait(LAST_WORDS_SECONDS)
        except TimeoutError:
            self.kill()
