"""Connections of an exchange: how many there are, and how long one may stay that has not shown the token."""

import logging
import socket
import ssl
import time
from contextlib import suppress
from threading import Lock

from gcr.image.exchange.heads import END, MOST_HEAD

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 512
GREETING_S = 10.0  # from the connection, TLS included, to a request with the token
_LINGER_S = 1.0
_READ_BYTES = 64 << 10


class Visit:
    """One connection. One thread uses it; `abort` may be called by another. `since`: when it began, monotonic."""

    def __init__(self, made: socket.socket) -> None:
        self._socket, self.since = made, time.monotonic()
        self._came = bytearray()  # what was read beyond the last request

    def begin(self, tls: ssl.SSLContext | None) -> None:
        """Does what TLS does first. Raises OSError."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(GREETING_S)
        if tls:
            made = tls.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            self._socket = made
            made.do_handshake()

    def limit(self, seconds: float) -> None:
        """Sets the time of each following step: a part that is read, or all of what is sent at once."""
        self._socket.settimeout(seconds)

    def head(self) -> bytes | None:
        """Reads the head of a request, without its empty line; None at the end of the connection.

        Raises OSError, ValueError for one of more than MOST_HEAD bytes, or that begins as no request does.
        """
        begin = 0
        while (end := self._came.find(END, begin)) < 0:
            if len(self._came) > MOST_HEAD or (self._came and not self._came[:1].isupper()):
                raise ValueError("no request")  # also TLS where none is spoken: its peer need not wait
            begin = max(0, len(self._came) - len(END))
            if not self._more():
                return None
        found = bytes(self._came[:end])
        del self._came[: end + len(END)]
        return found

    def body(self, size: int, seconds: float) -> bytes:
        """Reads so many bytes within `seconds`. Raises TimeoutError, ConnectionError, OSError."""
        end = time.monotonic() + seconds
        while len(self._came) < size:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.limit(left)
            if not self._more():
                raise ConnectionResetError("the peer has left within its question")
        found = bytes(self._came[:size])
        del self._came[:size]
        return found

    def send(self, data: bytes | memoryview) -> None:
        """Sends all bytes. Raises OSError; TimeoutError where the peer takes them too slowly."""
        self._socket.sendall(data)

    def abort(self) -> None:
        """Ends the connection: what its thread does with it raises from now on, and no byte leaves any more."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own would first take TLS away

    def linger(self) -> None:
        """Has the peer read the last answer: a connection that closes with unread bytes takes it along."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            self.limit(_LINGER_S)
            end = time.monotonic() + _LINGER_S
            while time.monotonic() < end and socket.socket.recv(self._socket, _READ_BYTES):
                pass

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bool:
        """Reads some bytes; returns False at the end of the connection."""
        some = self._socket.recv(_READ_BYTES)
        self._came += some
        return bool(some)


class Door:
    """All connections; a lock guards what is here."""

    def __init__(self) -> None:
        self._visits, self._strangers = set[Visit](), set[Visit]()
        self._lock = Lock()
        self._is_open = True

    def admit(self, made: socket.socket) -> Visit | None:
        """Returns the visit of a connection; None where there are too many, or the exchange ends."""
        with self._lock:
            if len(self._visits) >= MOST_CONNECTIONS or not self._is_open:
                return None
            visit = Visit(made)
            self._visits.add(visit)
            self._strangers.add(visit)
            return visit

    def known(self, visit: Visit) -> None:
        """Says that this connection has shown the token."""
        with self._lock:
            self._strangers.discard(visit)

    def left(self, visit: Visit) -> None:
        """Closes a connection."""
        with self._lock:
            self._visits.discard(visit)
            self._strangers.discard(visit)
            visit.close()

    def look(self) -> None:
        """Ends the connections of strangers that have been here for too long."""
        late = time.monotonic() - GREETING_S
        with self._lock:
            for each in self._strangers:
                if each.since < late:
                    each.abort()

    def shut(self) -> None:
        """Ends all connections, and admits no more."""
        with self._lock:
            self._is_open = False
            for each in self._visits:
                each.abort()

    def is_empty(self) -> bool:
        with self._lock:
            return not self._visits
