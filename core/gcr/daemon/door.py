"""The door for connections: one that cannot be served is refused, and harms no other.

The daemon may be short of descriptors, threads or memory for a moment. A peer may connect and never send its HELLO.
"""

import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from msgspec import Struct, field

log = logging.getLogger("gcr.daemon")

GREETING_S = 10.0  # seconds within which a peer sends its HELLO
MOST_STRANGERS = 16  # connections at once of users that the daemon does not serve, each told so
PAUSE_S = 0.1  # seconds after an accept that failed
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Visitor(Protocol):
    """A connection that is served."""

    @property
    def greeted(self) -> bool: ...

    @property
    def is_stranger(self) -> bool: ...

    def end(self) -> None:
        """Idempotent."""
        ...


class Door(Struct):
    """`serve` begins to serve a socket. A descriptor is kept in reserve, to refuse with."""

    serve: Callable[[socket.socket], Visitor]
    _waiting: dict[int, tuple[float, Visitor]] = field(default_factory=dict)
    _reserve: int | None = None
    _lock: Lock = field(default_factory=Lock)

    def take(self, listener: socket.socket) -> None:
        """Takes the next connection. Raises OSError if `listener` itself fails."""
        if self._reserve is None:
            self._reserve = _reserved()
        _await_one(listener)  # where there is no descriptor accept() fails at once; a later peer may have one
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
            self._refuse_next(listener)
            return
        self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            visitor = self.serve(sock)
        except (OSError, RuntimeError, MemoryError) as error:
            log.warning("a connection was refused: %s", error)
            sock.close()
            return
        with self._lock:
            crowded = visitor.is_stranger and self._strangers() >= MOST_STRANGERS
            if not crowded:
                self._waiting[id(visitor)] = time.monotonic(), visitor
        if crowded:
            visitor.end()

    def _strangers(self) -> int:
        return sum(each.is_stranger and not each.greeted for _, each in self._waiting.values())

    def _refuse_next(self, listener: socket.socket) -> None:
        """Take it with the reserve, and close it. Without a reserve there is only a pause."""
        log.warning("a connection was refused: no more descriptors")
        if self._reserve is None:
            time.sleep(PAUSE_S)
            return
        os.close(self._reserve)
        self._reserve = None
        sock, _ = listener.accept()
        sock.close()

    def end_half_open(self, patience: float = GREETING_S) -> None:
        """Ends connections of peers that have sent no HELLO for `patience` seconds."""
        now = time.monotonic()
        with self._lock:
            self._waiting = {key: each for key, each in self._waiting.items() if not each[1].greeted}
            late = [key for key, (since, _) in self._waiting.items() if now - since > patience]
            ended = [self._waiting.pop(key)[1] for key in late]
        for visitor in ended:
            log.info("a connection said nothing for %g s", patience)
            visitor.end()


def _await_one(listener: socket.socket) -> None:
    """Waits until a connection may be accepted, or `listener` is shut down. Raises OSError."""
    waiting = select.poll()
    waiting.register(_descriptor_of(listener), select.POLLIN)
    waiting.poll()


def _descriptor_of(listener: socket.socket) -> int:
    fd = listener.fileno()
    if fd < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fd


def _reserved() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
