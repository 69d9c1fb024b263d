"""The supervisor's line to gcrd: registers the job, offers the escrow, and starts a new daemon when one dies."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcr.errors import DaemonUnavailable, GcrError, PeerGone, UsageError
from gcr.memory.escrow import Escrow
from gcr.processes import ProcessIdentity, alive, identify
from gcr.protocol.channel import Channel, Request
from gcr.protocol.frames import AgentError, refused_greeting
from gcr.protocol.seqpacket import close_all
from gcr.protocol.trust import connect_to_daemon
from gcr.protocol.wire import FrameType, HelloRecord, Role
from gcr.rendezvous.launch import launch
from gcr.runtime import socket_path
from gcr.version import __version__

log = logging.getLogger("gcr.supervisor")

RESTART_EVERY = 10.0
RETRY_EVERY = 0.1
CALL_TIMEOUT = 15.0


@dataclass(slots=True)
class DaemonLink:
    """Keeps one connection to the daemon of the moment, for as long as the job runs."""

    describe: Callable[[], Mapping[str, object]]  # what to register: name, token, argv, pid …
    escrow: Escrow
    _kept: dict[int, ProcessIdentity | None] = field(default_factory=dict)  # processes of which the escrow may have any
    _channel: Channel | None = None
    _lost: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _last_launch: float = float("-inf")

    def open(self) -> Mapping[str, Any]:
        """Connect, starting a daemon if there is none, register, and keep the line up. Returns gcrd's answer."""
        answer = self._connect()
        threading.Thread(target=self._keep_up, name="gcr-link", daemon=True).start()
        return answer

    def tell(self, op: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        """One call to the daemon, which may have died: then PeerGone, and the line is being rebuilt."""
        channel = self._channel
        if channel is None:
            raise PeerGone("no daemon just now")
        answer, _ = channel.call_json(op, body, timeout=CALL_TIMEOUT)
        return answer

    def close(self) -> None:
        self._over.set()
        self._lost.set()
        if self._channel:
            self._channel.close()

    def _connect(self) -> Mapping[str, Any]:
        sock = self._reach()
        self._let_go_of_ended()
        # Inline: a put that overtook a later drop, or came after the next daemon's, would bring back older memory.
        channel = Channel(
            sock, self._serve, on_close=lambda _channel: self._lost.set(), name="gcrd", serve_inline={FrameType.CALL}
        )
        channel.start()
        about = self.describe()
        name, token = str(about["name"] or ""), str(about["token"])
        hello = HelloRecord(role=Role.SUPERVISOR, job=name, token=token, version=__version__)
        try:
            channel.call(FrameType.HELLO, hello.pack(), timeout=CALL_TIMEOUT)
        except AgentError as refusal:
            raise refused_greeting(refusal) from refusal
        answer, _ = channel.call_json("register", about, timeout=CALL_TIMEOUT)
        self._channel = channel
        return answer

    def _reach(self) -> socket.socket:
        try:
            return connect_to_daemon(socket_path(), 2.0)
        except (OSError, DaemonUnavailable):
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
            while not self._over.is_set() and self._channel is None:
                try:
                    self._connect()
                    log.info("registered with gcrd again")
                except (OSError, GcrError) as error:
                    log.debug("gcrd not reachable: %s", error)
                    time.sleep(RETRY_EVERY)

    def _serve(self, request: Request) -> None:
        body, fds = request.json(), request.take_fds()
        try:
            answer, given = self._answer(str(body["op"]), body, fds)
        finally:
            close_all(fds)
        try:
            request.reply_json(answer, given)
        finally:
            close_all(given)

    def _answer(self, op: str, body: Mapping[str, Any], fds: Sequence[int]) -> tuple[dict[str, object], Sequence[int]]:
        """Returns the reply, and descriptors to send along, which are closed afterwards."""
        pid = int(body.get("pid", 0))
        self._let_go_of_former(pid)
        match op:
            case "put":
                self._kept.setdefault(pid, identify(pid))
                self.escrow.put(pid, body["ids"], fds)
            case "drop":
                self.escrow.drop(pid, body["ids"])
            case "ids":
                return {"ids": self.escrow.ids(pid)}, ()
            case "take":
                return {}, self.escrow.take(pid, body["ids"])
            case "stage":
                self.escrow.stage(pid, fds, body["offset"])
            case "unstage":
                return {}, self.escrow.unstage(pid, body["offset"], body["limit"])
            case "unstage_all":
                self.escrow.unstage_all(pid)
            case "forget":
                self.escrow.forget(pid)
            case "note":
                self.escrow.note(str(body["text"]))
            case "noted":
                return {"text": self.escrow.noted()}, ()
            case _:
                raise UsageError(f"a supervisor knows no {op!r}")
        return {}, ()

    def _let_go_of_ended(self) -> None:
        """The daemon that knew of their ends may have died before it said so."""
        for pid in [*self._kept]:
            self._let_go_of_former(pid)

    def _let_go_of_former(self, pid: int) -> None:
        """Closes what is kept of a process that has ended, whose pid another one may have by now."""
        former = self._kept.get(pid)
        if former and not alive(former):
            self.escrow.forget(pid)
            del self._kept[pid]
