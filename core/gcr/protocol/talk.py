"""A connection without a thread of its own: the caller's threads send and read its frames.

It is for a client that waits while its program stands still. With a thread that reads, each frame makes Python's lock
change hands twice. The peer may answer such a client, and ask it nothing.
"""

import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any

from gcr.errors import DeadlinePassed, NoDescriptors, PeerGone
from gcr.protocol import jsonbody
from gcr.protocol.frames import Received
from gcr.protocol.seqpacket import close_all, receive_packet, send_packet
from gcr.protocol.wire import Frame, FrameType, decode, encode

SEND_S = 5.0  # for a peer that does not read


class Talk:
    """Sends and reads from any thread, one at a time. Closed by `close`."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setblocking(True)
        self._sock, self._name = sock, name
        self._numbers = count(1)
        self._reading, self._sending = Lock(), Lock()

    def send(self, kind: FrameType, payload: bytes) -> int:
        """Sends a request, and returns its number. Raises PeerGone, NotRead."""
        return self._send(kind, payload, ())

    def ask(self, op: str, body: Mapping[str, Any]) -> int:
        """Sends a command, and returns its number. Raises PeerGone, NotRead."""
        payload, large = jsonbody.dump({"op": op, **body})
        fds = () if large is None else (large,)
        try:
            return self._send(FrameType.COMMAND, payload, fds)
        finally:
            close_all(fds)

    def _send(self, kind: FrameType, payload: bytes, fds: tuple[int, ...]) -> int:
        with self._sending:
            number = next(self._numbers)
            send_packet(self._sock, encode(Frame(kind, number, payload, fds)), fds, SEND_S)
        return number

    def next(self, end: float) -> Received:
        """Returns the next frame, which owns its descriptors.

        end: by time.monotonic()

        Raises DeadlinePassed, PeerGone, BadFrame; NoDescriptors where this process has no room for those of a frame.
        """
        with self._reading:
            self._await(end)
            packet, fds, is_cut = receive_packet(self._sock)
        try:
            if not packet:
                raise PeerGone(f"{self._name}: the peer went away")
            if is_cut:
                raise NoDescriptors(f"{self._name}: no room for the descriptors of a frame")
            frame = decode(packet, fds)
        except BaseException:
            close_all(fds)
            raise
        return Received(frame.type, frame.request, frame.payload, frame.fds)

    def _await(self, end: float) -> None:
        if self._sock.fileno() < 0:
            raise PeerGone(f"{self._name}: the connection is closed")
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise DeadlinePassed(f"{self._name}: no answer in time")

    def end(self) -> None:
        """Ends the connection: a thread that reads finds that the peer has gone away. Idempotent."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends it and closes the socket, once no thread reads or sends. Idempotent."""
        self.end()
        with self._sending, self._reading:
            self._sock.close()
