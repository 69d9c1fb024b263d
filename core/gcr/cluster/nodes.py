"""Links: a way to the daemon of each node, by which requests go that any client of that daemon may send."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from gcr.api.answers import Answer, Pong, Ranks
from gcr.api.barriers import Barrier
from gcr.api.events import Listener, ProgressEvent
from gcr.api.listings import JobList
from gcr.api.partrequests import DropPartsRequest, ImageParts, KeepPartRequest, PartsRequest
from gcr.api.reports import CheckpointReport, Report, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, PsRequest, Request, RestoreRequest
from gcr.cluster.plugins import EVENT, Node
from gcr.errors import PeerGone, WrongVersion
from gcr.rendezvous.client import ANSWER_TIMEOUT, CONNECT_TIMEOUT, Client
from gcr.version import __version__

A = TypeVar("A", bound=Answer)
R = TypeVar("R", bound=Report)
Told = Callable[[Barrier], object]

STORE_S = 120.0  # for a node's store to answer; the daemon's own patience (store_s) is mostly shorter


class Link(Protocol):
    """The way to one node. Thread-safe. Each call raises what the daemon raised; PeerGone, DaemonUnavailable."""

    def greet(self) -> None:
        """Connects. Raises WrongVersion where the daemon is of another version of gcr."""
        ...

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        """Suspends the node's part within `limit` seconds. `told`: hears of each barrier that it has come to."""
        ...

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport: ...

    def say(self, word: CutRequest) -> None: ...

    def lead(self, word: CutRequest) -> Ranks:
        """Has the ranks of the node's part obey the order in `word`, and returns what they report."""
        ...

    def jobs(self) -> JobList: ...

    def ask(self, request: Request, kind: type[A], limit: float, hear: Listener) -> A:
        """Returns the answer to any request, within `limit` seconds. `hear`: is told of progress."""
        ...

    def parts(self, asked: PartsRequest) -> ImageParts:
        """Returns the node's parts of an image, or of a job's images."""
        ...

    def keep(self, asked: KeepPartRequest) -> None:
        """Writes the root of an image to the node's store."""
        ...

    def drop(self, asked: DropPartsRequest) -> None:
        """Removes the node's parts of an image that are of earlier cuts."""
        ...

    def close(self) -> None:
        """Leaves: whatever is under way by this link, and not decided, is taken back."""
        ...


class SocketLink:
    """A node by the path of its daemon's socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._client: Client | None = None
        self._lock = Lock()

    def greet(self) -> None:
        self._connected()

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        return self._carried_out(request, CheckpointReport, told, limit)

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport:
        return self._carried_out(request, RestoreReport, told, limit)

    def say(self, word: CutRequest) -> None:
        self._connected().ask(word, Pong)

    def lead(self, word: CutRequest) -> Ranks:
        return self._connected().ask(word, Ranks)

    def jobs(self) -> JobList:
        return self._connected().jobs()

    def ask(self, request: Request, kind: type[A], limit: float, hear: Listener) -> A:
        return self._connected().ask(request, kind, timeout=limit, on_event=hear)

    def parts(self, asked: PartsRequest) -> ImageParts:
        return self._connected().ask(asked, ImageParts, timeout=STORE_S)

    def keep(self, asked: KeepPartRequest) -> None:
        self._connected().ask(asked, Pong, timeout=STORE_S)

    def drop(self, asked: DropPartsRequest) -> None:
        self._connected().ask(asked, Pong, timeout=STORE_S)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _carried_out(self, request: CheckpointRequest | RestoreRequest, kind: type[R], told: Told, limit: float) -> R:
        return self._connected().ask(request, kind, timeout=limit, on_event=lambda event: _hear(event, told))

    def _connected(self) -> Client:
        """Returns the connection, made anew where the daemon has closed the former one."""
        with self._lock:
            if self._client is None or self._client.is_closed:
                self._client = self._greeted()
            return self._client

    def _greeted(self) -> Client:
        client = Client.at(self._path, CONNECT_TIMEOUT)
        if client.daemon_version == __version__:
            return client
        client.close()
        raise _other_version(client.daemon_version)


class CarriedLink:
    """A node of a cluster, by the plug-in that carries requests to it (plugins.py).

    If the caller ends, the node's daemon goes on with its request. So a part without a coordinator gives up by its own
    deadlines, or when it is told.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tokens: set[str] = set()  # of requests under way
        self._lock = Lock()

    def greet(self) -> None:
        facts = self._node.facts(ANSWER_TIMEOUT)
        if facts.version != __version__:
            raise _other_version(facts.version)

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        return self._carried(request, CheckpointReport, limit, told)

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport:
        return self._carried(request, RestoreReport, limit, told)

    def say(self, word: CutRequest) -> None:
        self._carried(word, Pong, ANSWER_TIMEOUT)

    def lead(self, word: CutRequest) -> Ranks:
        return self._carried(word, Ranks, ANSWER_TIMEOUT)

    def jobs(self) -> JobList:
        return self._carried(PsRequest(), JobList, ANSWER_TIMEOUT)

    def parts(self, asked: PartsRequest) -> ImageParts:
        return self._carried(asked, ImageParts, STORE_S)

    def keep(self, asked: KeepPartRequest) -> None:
        self._carried(asked, Pong, STORE_S)

    def drop(self, asked: DropPartsRequest) -> None:
        self._carried(asked, Pong, STORE_S)

    def close(self) -> None:
        with self._lock:
            left = [*self._tokens]
        for token in left:
            self._node.withdraw(token)

    def _carried(self, request: Request, kind: type[A], limit: float, told: Told = lambda _barrier: None) -> A:
        return self.ask(request, kind, limit, partial(_hear, told=told))

    def ask(self, request: Request, kind: type[A], limit: float, hear: Listener) -> A:
        token = secrets.token_hex(8)
        with self._lock:
            self._tokens.add(token)
        try:
            for word in self._node.carry(token, request.op, request.to_json(), limit):
                if word.kind == EVENT:
                    hear(ProgressEvent.from_json(word.body))
                elif error := word.error():
                    raise error
                else:
                    return kind.from_json(word.body)
        finally:
            with self._lock:
                self._tokens.discard(token)
        raise PeerGone(f"node {self._node.name} has not answered to the end")


def _hear(event: ProgressEvent, told: Told) -> None:
    if event.barrier is not None:
        told(Barrier(event.barrier))


def _other_version(version: str) -> WrongVersion:
    return WrongVersion(f"the daemon is gcr {version}, this is gcr {__version__}", hint="one version on all nodes")
