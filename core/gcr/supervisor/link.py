"""The supervisor's line to gcrd: registers the job, offers the escrow, and starts a new daemon when one dies."""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gcr.errors import DaemonUnavailable, GcrError, PeerGone, WrongState
from gcr.memory.escrow import Escrow
from gcr.protocol.channel import Channel, Request
from gcr.protocol.frames import AgentError, Received, refused_greeting
from gcr.protocol.operations.daemon import Register, Registered
from gcr.protocol.operations.operation import A, Answer, Operation, ask
from gcr.protocol.seqpacket import close_all
from gcr.protocol.trust import connect_to_daemon
from gcr.protocol.wire import FrameType, HelloRecord, Role
from gcr.rendezvous import away
from gcr.rendezvous.launch import launch
from gcr.runtime import socket_path
from gcr.supervisor.offer import Offer
from gcr.supervisor.parking import Parking
from gcr.version import __version__

log = logging.getLogger("gcr.supervisor")

RESTART_EVERY = 10.0
RETRY_EVERY = 0.1
CALL_TIMEOUT = 15.0
LOOK_EVERY = 0.01  # at the mark of a supervisor that is away


@dataclass(slots=True)
class DaemonLink:
    """Keeps one connection to the daemon of the moment, for as long as the job runs.

    A supervisor in a container starts no daemon: that one would see the container's processes alone.
    """

    describe: Callable[[], Register]
    escrow: Escrow
    parking: Parking = field(default_factory=Parking)
    _offer: Offer = field(init=False)
    _channel: Channel | None = None
    _lost: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _last_launch: float = float("-inf")
    _contained: bool = False
    _leaving: bool = False

    def __post_init__(self) -> None:
        self._offer = Offer(self.escrow, self.parking, self._leave)

    def open(self) -> Registered:
        """Connect, starting a daemon if there is none, register, and keep the line up. Returns gcrd's answer."""
        answer = self._connect()
        threading.Thread(target=self._keep_up, name="gcr-link", daemon=True).start()
        return answer

    def tell(self, operation: Operation[A]) -> A:
        """Calls the daemon once. Raises PeerGone if it has died; the line is being rebuilt then."""
        channel = self._channel
        if channel is None:
            raise PeerGone("no daemon just now")
        return _asked(channel, operation)

    @property
    def is_open(self) -> bool:
        """Returns whether a daemon has the job registered, and has not gone since."""
        return self._channel is not None and not self._channel.closed.is_set()

    def close(self) -> None:
        self._over.set()
        self._lost.set()
        if self._channel:
            self._channel.close()

    def _connect(self) -> Registered:
        sock = self._reach()
        self._offer.forget_ended()
        # Inline: a put that overtook a later drop, or came after the next daemon's, would bring back older memory.
        serve = self._offer.operations().serve
        channel = Channel(sock, serve, on_close=self._ended, name="gcrd", inline=_is_call)
        channel.start()
        try:
            answer = self._introduced(channel)
        except BaseException:
            channel.close()
            raise
        self._contained = self._contained or answer.contained
        self._channel = channel
        if channel.closed.is_set():  # perhaps before `_ended` could know it
            self._lost.set()
        return answer

    def _ended(self, channel: Channel) -> None:
        if channel is self._channel:
            self._lost.set()

    def _introduced(self, channel: Channel) -> Registered:
        """Greets the daemon and registers the job."""
        about = self.describe()
        hello = HelloRecord(role=Role.SUPERVISOR, job=about.name or "", token=about.token, version=__version__)
        try:
            channel.call(FrameType.HELLO, hello.pack(), timeout=CALL_TIMEOUT)
        except AgentError as refusal:
            raise refused_greeting(refusal) from refusal
        return _asked(channel, about)

    def _reach(self) -> socket.socket:
        try:
            return connect_to_daemon(socket_path(), 2.0)
        except (OSError, DaemonUnavailable):
            if self._contained:
                raise
            wait = self._last_launch + RESTART_EVERY - time.monotonic()
            if wait > 0:
                raise DaemonUnavailable(f"gcrd died; the next one starts in {wait:.0f} s") from None
        self._last_launch = time.monotonic()
        launch()
        return connect_to_daemon(socket_path(), 2.0)

    def _keep_up(self) -> None:
        while not self._over.is_set():
            self._lost.wait()
            self._lost.clear()
            self._channel = None
            self._stay_away()
            while not self._over.is_set() and self._channel is None:
                try:
                    self._connect()
                    log.info("registered with gcrd again")
                except (OSError, GcrError) as error:
                    log.debug("gcrd not reachable: %s", error)
                    time.sleep(RETRY_EVERY)

    def _leave(self, request: Request) -> Answer:
        """Raises WrongState without a mark, which would bring us back at once."""
        if not self._is_away():
            raise WrongState("no mark keeps this supervisor away")
        self._leaving = self._contained = True
        self.escrow.close()
        request.reply_json()
        request.channel.close()
        return Answer(later=True)

    def _stay_away(self) -> None:
        """Reads no clock: the machine on which CRIU brings this process back may have started later."""
        while self._leaving and not self._over.is_set() and self._is_away():
            select.select([], [], [], LOOK_EVERY)
        self._leaving = False

    def _is_away(self) -> bool:
        return away.is_marked(socket_path(), self.describe().token, os.getpid())


def _is_call(frame: Received) -> bool:
    return frame.type == FrameType.CALL


def _asked(channel: Channel, operation: Operation[A]) -> A:
    answer, fds = ask(channel, operation, timeout=CALL_TIMEOUT)
    close_all(fds)
    return answer
