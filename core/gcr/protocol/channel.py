"""One connected SOCK_SEQPACKET socket over which both sides call and serve.

A reader thread takes every frame off the socket and hands it on: a reply to the thread that waits in `call`, a request
to a thread of its own, so that a long one blocks no other. Every wait has a deadline; a peer that goes away ends all of
them with PeerGone. A frame that does not parse closes the connection, and nothing else happens.

Descriptors belong to the frame they came with until `take_fds`; the others are closed.
Lock order: `_send_lock`, then the one of `_pending`. Neither is held while a request is served or a callback runs.
"""

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, Thread, current_thread
from typing import Any

from gcr.errors import DeadlinePassed, GcrError, NoDescriptors, NotRead, PeerGone, Refused, typed
from gcr.protocol import jsonbody
from gcr.protocol.frames import AgentError, Received, agent_error, error_payload
from gcr.protocol.pending import Pending
from gcr.protocol.record import BadFrame
from gcr.protocol.seqpacket import PeerIdentity, close_all, connect, listen, peer_identity, receive_packet, send_packet
from gcr.protocol.servers import STRANGER, Bounds, Servers
from gcr.protocol.wire import (
    ERROR,
    JSON_TYPES,
    REPLY,
    UNANSWERED_TYPES,
    ErrorCode,
    ErrorRecord,
    Frame,
    FrameHeader,
    FrameType,
    StuckError,
    decode,
    encode,
)

__all__ = ["AgentError", "BadFrame", "Channel", "PeerIdentity", "Received", "Request", "connect", "listen"]

log = logging.getLogger(__name__)

REPLY_TIMEOUT = 30.0  # seconds a reply may wait for room in the socket
END_TIMEOUT = 1.0  # seconds in which the reader sees an end that another thread heard of first
PROGRESS_PATIENCE = 0.02  # seconds a progress report may


class Request:
    """A frame the peer wants answered (NOTICE excepted). Answer once, from any thread, now or later."""

    def __init__(self, frame: Received, channel: "Channel") -> None:
        self.frame = frame
        self.channel = channel
        self._answered = frame.type in UNANSWERED_TYPES

    def json(self) -> dict[str, Any]:
        """The JSON body. Raises BadFrame, which closes the connection when the server lets it pass."""
        fds = self.frame.take_fds()
        try:
            return jsonbody.load(self.frame.payload, fds)
        finally:
            self.frame.fds = fds

    def take_fds(self) -> list[int]:
        """The descriptors that came along; the caller closes them. What is not taken is closed after serving."""
        return self.frame.take_fds()

    def reply(self, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Raises PeerGone. Descriptors stay the caller's."""
        self._answer(REPLY | self.frame.type, payload, fds)

    def reply_json(self, body: Mapping[str, Any] | None = None, fds: Sequence[int] = ()) -> None:
        self._answer_json({"ok": True, **(body or {})}, fds)

    def fail(self, error: "GcrError | ErrorRecord | StuckError") -> None:
        """Answer with an error: of JSON when the request was JSON and the error is a GcrError, else an ERROR frame."""
        if isinstance(error, GcrError) and self.frame.type in JSON_TYPES:
            self._answer_json({"ok": False, "error": jsonbody.error_to_json(error)}, ())
        else:
            self._answer(ERROR, error_payload(error), ())

    def progress(self, body: Mapping[str, Any]) -> None:
        """Tells the caller of progress. A caller that does not read misses it and delays nothing. Raises PeerGone."""
        try:
            self.channel.send_json(FrameType.PROGRESS, self.frame.request, body, (), PROGRESS_PATIENCE)
        except DeadlinePassed:
            log.debug("%s does not read its progress", self.channel.name)

    def _answer_json(self, body: Mapping[str, Any], fds: Sequence[int]) -> None:
        kind, request = REPLY | self.frame.type, self.frame.request
        self._answer_once(lambda: self.channel.send_json(kind, request, body, fds, REPLY_TIMEOUT))

    def _answer(self, kind: int, payload: bytes, fds: Sequence[int]) -> None:
        self._answer_once(lambda: self.channel.send(Frame(kind, self.frame.request, payload, fds), REPLY_TIMEOUT))

    def _answer_once(self, send: Callable[[], None]) -> None:
        """Sends unless an answer was sent. Where it cannot be sent, such as a frame too large, `fail` may answer."""
        if self._answered:
            return
        self._answered = True
        try:
            send()
        except (PeerGone, DeadlinePassed):  # the peer takes no other answer either
            raise
        except BaseException:
            self._answered = False
            raise


class Channel:
    """See the module. `serve` gets every request; those that `inline` names are served on the reader thread, before
    the next frame is read. `on_close` runs once, on the reader thread, after the last frame."""

    def __init__(
        self,
        sock: socket.socket,
        serve: Callable[[Request], None] | None = None,
        on_close: "Callable[[Channel], None] | None" = None,
        name: str = "",
        inline: "Callable[[Received], bool]" = lambda _frame: False,
        bounds: Bounds = STRANGER,
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._serve = serve
        self._on_close = on_close
        self.name = name or f"fd {sock.fileno()}"
        self._inline = inline
        self.peer = peer_identity(sock)
        self.silent = False  # a call had no answer in time, and nothing has come since
        self._pending = Pending(self.name)
        self._send_lock = Lock()
        self._servers = Servers(self.name, bounds)
        self._reader: Thread | None = None

    @property
    def closed(self) -> Event:
        """Set once the connection has ended."""
        return self._pending.closed

    @property
    def awaits(self) -> bool:
        """Returns whether this process has made a call that has no answer yet."""
        return self._pending.begun

    def start(self) -> "Channel":
        """Raises RuntimeError, with the connection closed, where there is no room for another thread."""
        self._reader = Thread(target=self._read, name=f"gcr-read-{self.name}", daemon=True)
        try:
            self._reader.start()
        except RuntimeError:
            self._reader = None
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the connection. Idempotent, does not block; `closed` is set when it is done."""
        self._shut_down()
        if self._reader is None:
            self._finish()

    def call(self, type: FrameType, payload: bytes = b"", fds: Sequence[int] = (), *, timeout: float) -> Received:
        """Send a request and wait for its reply, whose descriptors are the caller's through `take_fds`.

        Raises DeadlinePassed after `timeout` seconds, PeerGone, AgentError for an error reply.
        """
        return self._call(type, lambda request, left: self.send(Frame(type, request, payload, fds), left), timeout)

    def call_json(
        self,
        op: str,
        body: Mapping[str, Any] | None = None,
        fds: Sequence[int] = (),
        *,
        timeout: float,
        on_progress: Callable[[dict[str, Any]], object] | None = None,
        on_silence: Callable[[], object] | None = None,
        type: FrameType = FrameType.CALL,
    ) -> tuple[dict[str, Any], list[int]]:
        """Call `op`; the reply's body and the descriptors that came with it, which the caller must close.

        `on_progress` and, while nothing comes, `on_silence` run on the calling thread; what they raise ends the call.
        Raises what the peer raised, DeadlinePassed, PeerGone, AgentError.
        """
        message = {"op": op, **(body or {})}
        try:
            reply = self._call(
                type,
                lambda request, left: self.send_json(type, request, message, fds, left),
                timeout,
                on_progress,
                on_silence,
            )
        except AgentError as error:
            if error.agent_code == ErrorCode.NO_DESCRIPTORS:
                raise NoDescriptors(f"{self.name}: {error.message}") from error
            raise
        received = reply.take_fds()
        try:
            answer = jsonbody.answer(reply.payload, received)
        except BaseException as error:
            close_all(received)
            if isinstance(error, BadFrame):
                self.close()
            raise
        return answer, received

    def notice(self, op: str, body: Mapping[str, Any] | None = None) -> None:
        """Tell the peer something it does not answer. Raises PeerGone, DeadlinePassed."""
        self.send_json(FrameType.NOTICE, 0, {"op": op, **(body or {})}, (), REPLY_TIMEOUT)

    def send_json(self, kind: int, request: int, body: Mapping[str, Any], fds: Sequence[int], timeout: float) -> None:
        payload, large = jsonbody.dump(body)
        try:
            self.send(Frame(kind, request, payload, fds if large is None else (large, *fds)), timeout)
        finally:
            if large is not None:
                close_all([large])

    def send(self, frame: Frame, timeout: float) -> None:
        """Send a frame; its descriptors stay the caller's. Raises PeerGone, NotRead, ValueError (too large)."""
        packet = encode(frame)
        deadline = time.monotonic() + timeout
        if not self._send_lock.acquire(timeout=max(timeout, 0)):
            raise NotRead(f"{self.name}: the peer does not read")
        try:
            # The lock keeps `_finish` from closing the socket under us: its number may belong to another file by then.
            send_packet(self._sock, packet, frame.fds, deadline - time.monotonic())
        finally:
            self._send_lock.release()

    def _call(
        self,
        type: FrameType,
        send: Callable[[int, float], None],
        timeout: float,
        on_progress: Callable[[dict[str, Any]], object] | None = None,
        on_silence: Callable[[], object] | None = None,
    ) -> Received:
        deadline = time.monotonic() + timeout
        request, waiting = self._pending.begin(REPLY | type, on_progress is not None)
        try:
            self._sent(send, request, timeout)
            late = f"{self.name}: no reply to {type.name} in {timeout:g} s"
            while (frame := waiting.next(deadline, late, on_silence)) is not None:
                if frame.type == ERROR:
                    raise agent_error(frame)
                if frame.type != FrameType.PROGRESS:
                    return frame
                if on_progress:
                    on_progress(jsonbody.load(frame.payload, []))
            self._await_end()
            raise PeerGone(f"{self.name}: the peer went away during {type.name}")
        except DeadlinePassed:
            self.silent = True
            raise
        finally:
            self._pending.end(request)

    def _sent(self, send: Callable[[int, float], None], request: int, timeout: float) -> None:
        try:
            send(request, timeout)
        except PeerGone:
            self._await_end()
            raise

    def _await_end(self) -> None:
        """Waits for `closed`, so a caller that hears of the peer's end may look for its successor at once.

        The frames that the peer sent before are served first; not for ever, since that may wait for this caller.
        """
        self.close()
        if self._reader is not None and self._reader is not current_thread():
            self.closed.wait(END_TIMEOUT)

    def _read(self) -> None:
        try:
            while self._read_one():
                pass
        except BadFrame as error:
            log.warning("%s: closing after a frame that does not parse: %s", self.name, error)
        except OSError as error:
            log.info("%s: %s", self.name, error)
        finally:
            self._finish()

    def _read_one(self) -> bool:
        packet, fds, cut = receive_packet(self._sock)
        self.silent = False
        if not packet:
            close_all(fds)  # an empty packet may carry some
            return False
        if cut:
            close_all(fds)
            self._refuse_cut(packet)
            return True
        try:
            frame = decode(packet, fds)
        except BadFrame:
            close_all(fds)
            raise
        self._dispatch(Received(frame.type, frame.request, frame.payload, frame.fds))
        return True

    def _dispatch(self, frame: Received) -> None:
        if frame.type & REPLY or frame.type == FrameType.PROGRESS:
            self._pending.deliver(frame)
            return
        request = Request(frame, self)
        if self._inline(frame):
            self._serve_one(request)
        elif not self._servers.submit(lambda: self._serve_one(request)):
            self._fail(request, Refused("too many requests at once"))
            frame.close()

    def _refuse_cut(self, packet: bytes) -> None:
        """Tells the other side that descriptors were lost: this process has no room for them."""
        header = FrameHeader.unpack(packet)
        error = StuckError(ErrorRecord(ErrorCode.NO_DESCRIPTORS, message="no room for the descriptors of a frame"))
        if header.type & REPLY:
            self._pending.deliver(Received(ERROR, header.request, error.pack()))
        else:
            self._fail(Request(Received(header.type, header.request), self), error.error)

    def _serve_one(self, request: Request) -> None:
        try:
            if self._serve is None:
                raise Refused(f"{self.name} serves no requests")
            self._serve(request)
        except BadFrame as error:
            log.warning("%s: closing after a request that does not parse: %s", self.name, error)
            self.close()
        except GcrError as error:
            self._fail(request, error)
        except Exception as error:
            log.exception("%s: serving a request failed", self.name)
            self._fail(request, typed(error))
        finally:
            request.frame.close()

    def _fail(self, request: Request, error: GcrError | ErrorRecord) -> None:
        try:
            request.fail(error)
        except (PeerGone, DeadlinePassed) as gone:
            log.info("%s: no peer to tell %s: %s", self.name, error, gone)

    def _finish(self) -> None:
        self._shut_down()  # wakes the thread that holds `_send_lock`
        with self._send_lock:
            waiting = self._pending.close()
            if waiting is None:
                return
            self._sock.close()
        for one in waiting:
            one.inbox.put(None)
        if self._on_close is not None:
            self._on_close(self)

    def _shut_down(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # the peer, or an earlier close, was first
            pass
