"""gcrd's socket: the roles of its connections, and the ways of their requests.

The first frame of a connection is HELLO and says its role; identity is the kernel's (SO_PEERCRED). Each socket has one
Connection; what it serves is decided by its role.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from gcr.api.requests import HandOverRequest
from gcr.daemon import handles
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.clientdesk import ClientDesk
from gcr.daemon.commands import context
from gcr.daemon.commands.unsettled import Unsettled
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.desk import SupervisorDesk
from gcr.daemon.door import PAUSE_S, Door
from gcr.daemon.permission import caller_of
from gcr.devices import uuid_text
from gcr.errors import DaemonUnavailable, NotOurs, PeerGone, UsageError, WrongState, WrongVersion
from gcr.peers.agent import AgentPeer
from gcr.peers.supervisor import SupervisorPeer
from gcr.processes import identify
from gcr.protocol.agentwire import IdList, OccupiedRecord
from gcr.protocol.channel import Channel, Received, Request
from gcr.protocol.seqpacket import close_all, peer_identity
from gcr.protocol.wire import VERSION, FrameType, HelloRecord, Role, WelcomeFlag, WelcomeRecord
from gcr.rendezvous.presence import Presence
from gcr.version import __version__

log = logging.getLogger("gcr.daemon")


class Server:
    def __init__(
        self, listener: socket.socket, coordinator: Coordinator, allowed: frozenset[int], presence: Presence
    ) -> None:
        self.listener = listener
        self.coordinator = coordinator
        self.presence = presence
        self.arrivals = Arrivals(coordinator, presence.come, presence.gone)
        self.unsettled = Unsettled.of(coordinator)
        coordinator.jobs.awaited, coordinator.jobs.settle = presence.awaited, self.arrivals.settle
        coordinator.contexts.save = partial(context.make_way, coordinator)
        self.allowed = allowed
        self.epoch = int.from_bytes(os.urandom(7))
        self.stopping = threading.Event()
        self.door = Door(partial(Connection, self))
        self._commands = 0  # under way
        self._closing = False
        self._lock = threading.Lock()

    def serve_forever(self) -> None:
        while not self.stopping.is_set():
            listener = self.listener
            try:
                self.door.take(listener)
            except OSError as error:
                if listener is not self.listener:  # it was replaced
                    listener.close()
                elif not self.stopping.wait(PAUSE_S):
                    log.warning("no connection was taken: %s", error)

    def serve_at(self, listener: socket.socket) -> None:
        """Accepts connections at this listener from now on: the path of the former socket is gone."""
        former, self.listener = self.listener, listener
        former.shutdown(socket.SHUT_RDWR)
        if self.stopping.is_set():
            listener.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def command(self, counts: bool = True) -> Iterator[None]:
        """Counts a client's command as under way. Raises DaemonUnavailable if the daemon is about to end."""
        with self._lock:
            if self._closing:
                raise DaemonUnavailable("this daemon is about to end; nothing was touched", hint="the same once more")
            self._commands += counts
        try:
            yield
        finally:
            with self._lock:
                self._commands -= counts

    def close_if_idle(self, own: int = 0) -> str:
        """Take no more commands, unless something is under way, which is returned. `own`: commands that ask for it."""
        with self._lock:
            busy = [job.name for job in self.coordinator.jobs.all() if job.busy or not job.turn.settled.is_set()]
            under_way = f"job {busy[0]} is being changed" if busy else "a command" * (self._commands > own)
            self._closing = self._closing or not under_way
        return under_way

    def hand_over(self, request: HandOverRequest) -> None:
        """Ends for a daemon of another version.

        Every job stays as it is: the other daemon finds it as after a death of this one.
        Raises WrongVersion, WrongState.
        """
        peers = [process.peer for job in self.coordinator.jobs.all() for process in job.living if process.peer]
        for peer in peers:
            if not peer.hello.oldest <= request.wire <= peer.hello.newest:
                text = f"process {peer.identity.pid} does not speak protocol {request.wire} of gcr {request.version}"
                raise WrongVersion(text, hint=f"restore it with gcr {__version__}, and end it")
        if under_way := self.close_if_idle(own=1):
            raise WrongState(f"{under_way} just now", hint="the same once more when it is over")
        log.info("handed over to gcr %s", request.version)

    def stop_when_idle(self) -> None:
        """Stop unless something is under way."""
        if not self.close_if_idle():
            self.stop()

    def stop(self) -> None:
        self.stopping.set()
        self.listener.shutdown(socket.SHUT_RDWR)


def _is_quick(frame: Received) -> bool:
    """Tells whether a request is a greeting, other than an agent's, which may wait for a device.

    A command may come right behind its greeting, so that is served before the next frame is read.
    """
    return frame.type == FrameType.HELLO and HelloRecord.unpack(frame.payload).role != Role.AGENT


class Connection:
    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._hello: HelloRecord | None = None
        self._desk: SupervisorDesk | None = None  # of a supervisor
        self._identity = identify(peer_identity(sock).pid)
        caller = caller_of(sock)
        name = f"process {peer_identity(sock).pid}"
        self.channel = Channel(sock, self._serve, on_close=lambda _c: self._on_close(), name=name, inline=_is_quick)
        self._client = ClientDesk(server, self.channel, caller, self._identity)
        self._on_close: Callable[[], None] = self._client.leave
        self.channel.start()

    @property
    def greeted(self) -> bool:
        """Returns whether the peer has sent its HELLO, or is gone."""
        return self._hello is not None or self.channel.closed.is_set()

    @property
    def is_stranger(self) -> bool:
        """Returns whether the peer is of a user that the daemon does not serve."""
        return self.channel.peer.uid not in self._server.allowed

    def end(self) -> None:
        self.channel.close()

    def _serve(self, request: Request) -> None:
        if request.frame.type == FrameType.HELLO:
            self._greet(request)
        elif self._hello is None:
            raise UsageError("the first frame must be HELLO")
        elif self._hello.role == Role.AGENT:
            self._serve_agent(request)
        elif self._hello.role == Role.SUPERVISOR:
            self._serve_supervisor(request)
        else:
            self._client.serve(request)

    def _greet(self, request: Request) -> None:
        hello = HelloRecord.unpack(request.frame.payload)
        if self.is_stranger:
            raise NotOurs(f"user {self.channel.peer.uid} may not use this daemon")
        if not hello.oldest <= VERSION <= hello.newest:
            raise WrongVersion(f"protocol versions {hello.oldest} to {hello.newest}; this daemon speaks {VERSION}")
        role = Role(hello.role)
        self._hello = hello
        if role == Role.AGENT:
            self._admit_agent(hello, request)
            return
        if role == Role.SUPERVISOR:
            self._admit_supervisor()
        request.reply(self._welcome().pack())

    def _welcome(self, wait: bool = False) -> WelcomeRecord:
        flags = WelcomeFlag.WAIT if wait else 0
        return WelcomeRecord(VERSION, flags, os.getpid(), self._server.epoch, __version__)

    # ---- agents ------------------------------------------------------------------------------------------------------

    def _admit_agent(self, hello: HelloRecord, request: Request) -> None:
        identity = identify(self.channel.peer.pid)
        if identity is None:
            raise PeerGone("the process has ended")

        def welcome(wait: bool) -> None:
            request.reply(self._welcome(wait).pack(), [self._server.coordinator.occupied.fd])

        limit = self._server.coordinator.config.hand_over_s
        try:
            process = self._server.arrivals.agent(AgentPeer(self.channel, identity, hello, limit), welcome)
        except BaseException:  # it may be welcomed already: a connection that is in no job serves nothing
            self.channel.close()
            raise
        self._on_close = lambda: self._server.arrivals.agent_left(process, self.channel)

    def _serve_agent(self, request: Request) -> None:
        descriptors: list[int] = []
        match request.frame.type:
            case FrameType.RELEASED:
                ids = IdList.unpack(request.frame.payload)
                handles.released(self._server.coordinator, self.channel.peer.pid, ids.ids)
            case FrameType.DESCRIPTOR:
                ids = IdList.unpack(request.frame.payload)
                descriptors = handles.descriptors(self._server.coordinator, self.channel.peer.pid, ids.ids)
            case FrameType.LET_GO:
                full = OccupiedRecord.unpack(request.frame.payload)
                self._server.coordinator.free_room({uuid_text(full.uuid)})
            case _:
                raise UsageError("an agent asks only RELEASED, LET_GO and DESCRIPTOR")
        try:
            request.reply(fds=descriptors)
        finally:
            close_all(descriptors)

    # ---- supervisors -------------------------------------------------------------------------------------------------

    def _admit_supervisor(self) -> None:
        peer, server = SupervisorPeer(self.channel, self.channel.peer.pid), self._server
        desk = SupervisorDesk(server.coordinator, server.arrivals, peer)
        self._desk, self._on_close = desk, lambda: self._supervisor_left(desk)

    def _serve_supervisor(self, request: Request) -> None:
        if self._desk is not None:
            self._desk.operations().serve(request)

    def _supervisor_left(self, desk: SupervisorDesk) -> None:
        if desk.job is None:
            return
        if self._identity:
            self._server.presence.gone(self._identity)
        self._server.arrivals.supervisor_left(desk.job)
