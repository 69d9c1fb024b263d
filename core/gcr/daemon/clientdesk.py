"""The daemon's side of a client's connection: its commands, and what goes back to it meanwhile."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Protocol, TypeVar

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
from gcr.daemon.arrivals import check_stoppable
from gcr.daemon.commands import checkpoint, looking, migrating, parts, removal, restore, save
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.swap import Swap
from gcr.daemon.commands.unsettled import Unsettled
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.ledger import Entry, asked_by
from gcr.daemon.permission import Caller
from gcr.errors import GcrError, PeerGone
from gcr.processes import ProcessIdentity
from gcr.protocol.channel import Channel, Request
from gcr.protocol.seqpacket import close_all
from gcr.version import __version__

Wanted = TypeVar("Wanted", bound=ImageRequest)
Command = Callable[[Coordinator, Wanted, Asked], Answer]


class Daemon(Protocol):
    """The daemon that a client's commands are about."""

    @property
    def coordinator(self) -> Coordinator: ...
    @property
    def unsettled(self) -> Unsettled: ...
    def command(self, counts: bool = True) -> AbstractContextManager[None]: ...
    def hand_over(self, request: HandOverRequest) -> None: ...
    def stop(self) -> None: ...


class Call(Struct):
    """One command under way. `who`: its caller in words · `gives`: descriptors that go with the answer."""

    request: Request
    who: str
    cancel: threading.Event = field(default_factory=threading.Event)
    gives: list[int] = field(default_factory=list)

    def teller(self, target: Target) -> Listener:
        """Returns what tells the caller of progress; a caller that has left cancels the command."""

        def tell(event: ProgressEvent) -> None:
            try:
                self.request.progress(replace(event, job=str(target)).to_json())
            except PeerGone:
                self.cancel.set()  # the connection's own thread may hear of it later

        return tell


class ClientDesk(Struct):
    """Serves one client. Its leaving cancels the commands that are under way.

    identity: of the connection, by the kernel's word
    """

    daemon: Daemon
    channel: Channel
    caller: Caller
    identity: ProcessIdentity | None
    _cancels: set[threading.Event] = field(default_factory=set)
    _named: SimpleQueue[SaveNowRequest] = field(default_factory=SimpleQueue)  # for the save under way

    def leave(self) -> None:
        """Cancels all commands under way."""
        for event in list(self._cancels):
            event.set()

    def serve(self, request: Request) -> None:
        """Carries out a command, and answers it. Raises GcrError, which the log has then."""
        body = request.json()
        entry = Entry(str(body.get("op")), body, asked_by(self.channel.peer))
        call = Call(request, entry.who)
        self._cancels.add(call.cancel)
        if self.channel.closed.is_set():  # the caller left before this thread began, and is not heard leaving again
            call.cancel.set()
        try:
            self.caller.check_command(entry.op)
            asked = request_of(body)
            with self.daemon.command(counts=not isinstance(asked, EventsRequest)):  # which may wait for long
                answer = self._answer(asked, call)
        except GcrError as error:
            entry.failed(error)
            raise
        finally:
            self._cancels.discard(call.cancel)
        try:
            request.reply_json(answer.to_json(), call.gives)
        finally:  # also for a caller that has left: after `hand_over` this daemon refuses every command
            if isinstance(asked, StopRequest | HandOverRequest):
                self.daemon.stop()
            close_all(call.gives)

    def _answer(self, asked: AnyRequest, call: Call) -> Answer:
        coordinator = self.daemon.coordinator
        match asked:
            case PingRequest():
                return Pong(pid=os.getpid(), version=__version__)
            case PsRequest():
                return looking.ps(coordinator, self.caller)
            case DevicesRequest():
                return looking.devices(coordinator, self.caller)
            case StatusRequest():
                return looking.status(coordinator)
            case EventsRequest():
                return coordinator.jobs.history.asked(asked, self.caller, call.cancel)
            case CheckpointRequest():
                return self._lending(checkpoint.run, asked, call)
            case RestoreRequest():
                return self._lending(restore.run, asked, call)
            case SwapRequest():
                return Swap(coordinator, asked, call.teller, call.cancel, self.caller, call.who).run()
            case CutRequest():
                ranks = coordinator.cuts.told(asked, self.caller)
                return Ranks(ranks=ranks) if asked.lead else Pong(pid=os.getpid(), version=__version__)
            case PartsRequest():
                return parts.found(coordinator, asked, self.caller)
            case KeepPartRequest():
                parts.kept(coordinator, asked, self.caller)
                return Pong(pid=os.getpid(), version=__version__)
            case DropPartsRequest():
                parts.dropped(coordinator, asked, self.caller)
                return Pong(pid=os.getpid(), version=__version__)
            case MigrateRequest():
                return migrating.run(coordinator, asked, self._asked(str(asked.step.get("job")), call))
            case SaveSpansRequest():
                return self._save(asked, call)
            case SaveNowRequest():
                self._named.put(asked)
                return Pong(pid=os.getpid(), version=__version__)
            case NoteRemovalRequest():
                removal.noted(coordinator.jobs.history, asked, self.caller.uid, call.who)
                return Pong(pid=os.getpid(), version=__version__)
            case RecoverRequest():
                return replace(coordinator.recovery.of_all(), migrations=self.daemon.unsettled.of_all())
            case HandOverRequest():
                self.daemon.hand_over(asked)
                return Leaving(pid=os.getpid())
            case StopRequest():
                check_stoppable(coordinator.jobs, asked.force)
                return Leaving(pid=os.getpid())

    def _asked(self, target: Target, call: Call, key: Sequence[int] = ()) -> Asked:
        return Asked(call.teller(target), call.cancel, key, self.caller, call.who)

    def _lending(self, command: Command[Wanted], wanted: Wanted, call: Call) -> Answer:
        """Carries out a command with the descriptor of a store's key, if one came along."""
        key = call.request.take_fds()
        try:
            return command(self.daemon.coordinator, wanted, self._asked(wanted.target, call, key))
        finally:
            close_all(key)

    def _save(self, asked: SaveSpansRequest, call: Call) -> Answer:
        told = self._asked(self.identity.pid if self.identity else 0, call)
        try:
            answer, fds = save.run(self.daemon.coordinator, asked, told, save.Program(self.identity, self._named))
        finally:
            self._named = SimpleQueue()
        call.gives += fds
        return answer
