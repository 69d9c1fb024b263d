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
from queue import SimpleQueue
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.answers import Answer, Leaving, Pong, Ranks
from gcr.api.anyrequest import AnyRequest, request_of
from gcr.api.events import Listener, ProgressEvent
from gcr.api.partrequests import DropPartsRequest, KeepPartRequest, PartsRequest
from gcr.api.requests import (
    CheckpointRequest,
    CutRequest,
    DevicesRequest,
    EventsRequest,
    HandOverRequest,
    ImageRequest,
    MigrateRequest,
    NoteRemovalRequest,
    PingRequest,
    PsRequest,
    RecoverRequest,
    RestoreRequest,
    SaveNowRequest,
    SaveSpansRequest,
    StatusRequest,
    StopRequest,
    SwapRequest,
    Target,
)
from gcr.daemon import handles
from gcr.daemon.arrivals import Arrivals, check_stoppable
from gcr.daemon.commands import checkpoint, context, looking, migrating, parts, removal, restore, save
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.swap import Swap
from gcr.daemon.commands.unsettled import Unsettled
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.desk import SupervisorDesk
from gcr.daemon.door import PAUSE_S, Door
from gcr.daemon.ledger import Entry, asked_by
from gcr.daemon.permission import caller_of
from gcr.devices import uuid_text
from gcr.errors import DaemonUnavailable, GcrError, NotOurs, PeerGone, UsageError, WrongState, WrongVersion
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

Wanted = TypeVar("Wanted", bound=ImageRequest)
Command = Callable[[Coordinator, Wanted, Asked], Answer]


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


class Commands(Struct):
    """Running commands of one client; its leaving cancels them."""

    cancels: set[threading.Event] = field(default_factory=set)

    def cancel(self) -> None:
        for event in list(self.cancels):
            event.set()


def _is_quick(frame: Received) -> bool:
    """Tells whether a request is a greeting, other than an agent's, which may wait for a device.

    A command may come right behind its greeting, so that is served before the next frame is read.
    """
    return frame.type == FrameType.HELLO and HelloRecord.unpack(frame.payload).role != Role.AGENT


class Connection:
    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._hello: HelloRecord | None = None
        self._commands = Commands()
        self._on_close: Callable[[], None] = self._commands.cancel
        self._desk: SupervisorDesk | None = None  # of a supervisor
        self._named = SimpleQueue[SaveNowRequest]()  # for the save under way
        self._identity = identify(peer_identity(sock).pid)
        self._caller = caller_of(sock)
        name = f"process {peer_identity(sock).pid}"
        self.channel = Channel(sock, self._serve, on_close=lambda _c: self._on_close(), name=name, inline=_is_quick)
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
            self._serve_client(request)

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

    # ---- clients -----------------------------------------------------------------------------------------------------

    def _serve_client(self, request: Request) -> None:
        body = request.json()
        cancel = threading.Event()
        self._commands.cancels.add(cancel)
        if self.channel.closed.is_set():  # the caller left before this thread began, and is not heard leaving again
            cancel.set()
        entry = Entry(str(body.get("op")), body, asked_by(self.channel.peer))
        fds: list[int] = []  # that go with the answer
        try:
            self._caller.check_command(entry.op)
            asked = request_of(body)
            with self._server.command(counts=not isinstance(asked, EventsRequest)):  # which may wait for long
                answer = self._command(asked, request, cancel, fds, entry.who)
        except GcrError as error:
            entry.failed(error)
            raise
        finally:
            self._commands.cancels.discard(cancel)
        try:
            request.reply_json(answer.to_json(), fds)
        finally:  # also for a caller that has left: after `hand_over` this daemon refuses every command
            if isinstance(asked, StopRequest | HandOverRequest):
                self._server.stop()
            close_all(fds)

    def _command(
        self, asked: AnyRequest, request: Request, cancel: threading.Event, gives: list[int], who: str
    ) -> Answer:
        coordinator = self._server.coordinator
        match asked:
            case PingRequest():
                return Pong(pid=os.getpid(), version=__version__)
            case PsRequest():
                return looking.ps(coordinator, self._caller)
            case DevicesRequest():
                return looking.devices(coordinator, self._caller)
            case StatusRequest():
                return looking.status(coordinator)
            case EventsRequest():
                return coordinator.jobs.history.asked(asked, self._caller, cancel)
            case CheckpointRequest():
                return self._lending(checkpoint.run, asked, request, cancel, who)
            case RestoreRequest():
                return self._lending(restore.run, asked, request, cancel, who)
            case SwapRequest():
                tell = partial(self._teller, request, cancel=cancel)
                return Swap(coordinator, asked, tell, cancel, self._caller, who).run()
            case CutRequest():
                ranks = coordinator.cuts.told(asked, self._caller)
                return Ranks(ranks=ranks) if asked.lead else Pong(pid=os.getpid(), version=__version__)
            case PartsRequest():
                return parts.found(coordinator, asked, self._caller)
            case KeepPartRequest():
                parts.kept(coordinator, asked, self._caller)
                return Pong(pid=os.getpid(), version=__version__)
            case DropPartsRequest():
                parts.dropped(coordinator, asked, self._caller)
                return Pong(pid=os.getpid(), version=__version__)
            case MigrateRequest():
                told = Asked(self._teller(request, str(asked.step.get("job")), cancel), cancel, (), self._caller, who)
                return migrating.run(coordinator, asked, told)
            case SaveSpansRequest():
                return self._save(asked, request, cancel, gives)
            case SaveNowRequest():
                self._named.put(asked)
                return Pong(pid=os.getpid(), version=__version__)
            case NoteRemovalRequest():
                removal.noted(coordinator.jobs.history, asked, self._caller.uid, who)
                return Pong(pid=os.getpid(), version=__version__)
            case RecoverRequest():
                return replace(coordinator.recovery.of_all(), migrations=self._server.unsettled.of_all())
            case HandOverRequest():
                self._server.hand_over(asked)
                return Leaving(pid=os.getpid())
            case StopRequest():
                check_stoppable(coordinator.jobs, asked.force)
                return Leaving(pid=os.getpid())

    def _lending(
        self, command: Command[Wanted], wanted: Wanted, request: Request, cancel: threading.Event, who: str
    ) -> Answer:
        """Carries out a command with the descriptor of a store's key, if one came along."""
        key = request.take_fds()
        try:
            asked = Asked(self._teller(request, wanted.target, cancel), cancel, key, self._caller, who)
            return command(self._server.coordinator, wanted, asked)
        finally:
            close_all(key)

    def _save(self, asked: SaveSpansRequest, request: Request, cancel: threading.Event, gives: list[int]) -> Answer:
        who = self._identity  # of the connection, by the kernel's word
        told = Asked(self._teller(request, who.pid if who else 0, cancel), cancel, caller=self._caller)
        try:
            answer, fds = save.run(self._server.coordinator, asked, told, save.Program(who, self._named))
        finally:
            self._named = SimpleQueue()
        gives += fds
        return answer

    def _teller(self, request: Request, target: Target, cancel: threading.Event) -> Listener:
        def tell(event: ProgressEvent) -> None:
            try:
                request.progress(replace(event, job=str(target)).to_json())
            except PeerGone:
                cancel.set()  # the caller left; the connection's own thread may hear of it later

        return tell
