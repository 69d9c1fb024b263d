"""`gcr exchange` from its begin to its end: it answers the requests of wire.py from one store.

Each connection has a thread. OpenSSL encrypts and sends without Python's lock, so several connections fill several
cores. An event loop took 1.3 s of its one core for each GB, and bounded all that a node gave.

aiohttp's server is such a loop. The standard library's tells strangers what was wrong with their request, and speaks
older versions of HTTP. So heads.py reads what a node asks, and refuses anything else.
"""

import logging
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

from msgspec import Struct

from gcr.image.disk.bounce import Bounce
from gcr.image.exchange.door import Door, Visit
from gcr.image.exchange.heads import Head, answer_head
from gcr.image.exchange.lease import Lease
from gcr.image.exchange.offer import NotHere, Offer
from gcr.image.exchange.turns import Turns
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, MOST_LOOK, PACKS, Look, packed, parsed, wait_of
from gcr.imageerrors import Damaged
from gcr.tokens import is_shown

log = logging.getLogger(__name__)

UNIT = 512 << 10  # bytes that are read and sent at once; each connection has so much in memory
MOST_SENDING = 128  # answers with bytes of packs at once
STALLED_S = 30.0  # a peer that takes none of a unit for so long is given up
IDLE_S = 75.0  # between two requests of a connection
BODY_S = 10.0
_LOOK_S = 0.5
_AGAIN_S = 0.002  # between two looks for a file that a peer waits for
_LAST_WORDS_S = 1.0  # for connections to end, once the exchange does
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})\Z")
_ENDING = (signal.SIGTERM, signal.SIGINT)
_SEAL = re.compile(r'"([0-9a-f]{64})"\Z')

_UNITS = Bounce()


class Listening(Struct, frozen=True):
    """The way in: a socket that listens, and TLS or None for a loopback address."""

    socket: socket.socket
    tls: ssl.SSLContext | None
    token: str


class _BrokenOff(Exception):
    """An answer ended within its body: so does the connection."""


class Exchange:
    """One running exchange. `with` it: it answers within."""

    def __init__(self, store: Path, way: Listening) -> None:
        self._way, self._store = way, store
        self.offer = Offer(store)
        self.sent = 0  # bytes of packs
        self._sending = 0
        self._lock = Lock()  # of the two counts
        self._turns, self._door, self._lease = Turns(), Door(), Lease(store)
        self._ending = Event()

    def __enter__(self) -> Self:
        self._running = [Thread(target=each, name="gcr-exchange", daemon=True) for each in (self._accept, self._tend)]
        for thread in self._running:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        with suppress(OSError):
            self._way.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        for thread in self._running:
            thread.join()
        self._door.shut()
        end = time.monotonic() + _LAST_WORDS_S
        while not self._door.is_empty() and time.monotonic() < end:
            time.sleep(0.005)
        self._lease.end()
        self.offer.close()

    # ---- connections --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                made, _ = self._way.socket.accept()
            except OSError as error:
                if not self._ending.wait(0.05):  # there are no descriptors left, or the peer has gone already
                    log.info("a connection was not accepted: %s", error)
                continue
            visit = self._door.admit(made)
            if visit is None:
                made.close()
                continue
            try:
                Thread(target=self._serve, args=(visit,), name="gcr-visit", daemon=True).start()
            except RuntimeError as error:  # the system has no thread left
                log.warning("%s: a connection was not served: %s", self._store, error)
                self._door.left(visit)

    def _tend(self) -> None:
        """Ends what has taken too long, until the exchange ends."""
        while not self._ending.wait(_LOOK_S):
            self._door.look()
            self._lease.look()

    def _serve(self, visit: Visit) -> None:
        """Answers the requests of one connection, one after the other."""
        try:
            visit.begin(self._way.tls)
            while self._answered(visit):
                visit.limit(IDLE_S)
        except (OSError, ValueError, _BrokenOff) as error:  # ssl.SSLError is an OSError
            log.info("a connection ended: %r", error)
        finally:
            self._door.left(visit)

    def _answered(self, visit: Visit) -> bool:
        """Answers one request. Returns whether another one may follow; raises what ends the connection."""
        try:
            text = visit.head()
            if text is None:
                return False
            head = Head.parsed(text)
        except ValueError:
            return self._last(visit, 400)
        if not is_shown(self._way.token, head.fields.get("authorization", "")):
            return self._last(visit, 401, {"WWW-Authenticate": "Bearer"})  # a stranger learns nothing
        self._door.known(visit)
        try:
            self._lease.renew()
            more = self._answer(visit, head)
        except (NotHere, Damaged, FileNotFoundError):
            more = self._say(visit, 404)
        except (ValueError, TimeoutError):
            return self._last(visit, 400)
        except ConnectionError:
            raise
        except OSError as error:
            log.warning("%s: %s", self._store, error)
            return self._last(visit, 503)
        return more and not head.is_last

    def _last(self, visit: Visit, status: int, more: dict[str, str] | None = None) -> bool:
        """Says that it is over with this connection."""
        visit.limit(STALLED_S)
        visit.send(answer_head(status, 0, {**(more or {}), "Connection": "close"}))
        visit.linger()
        return False

    def _say(self, visit: Visit, status: int, body: bytes = b"") -> bool:
        visit.limit(STALLED_S)
        try:
            visit.send(answer_head(status, len(body)) + body)
        except OSError as error:
            raise _BrokenOff(str(error)) from error
        return True

    # ---- answers ------------------------------------------------------------------------------------------------

    def _answer(self, visit: Visit, head: Head) -> bool:
        """Raises NotHere, Damaged, OSError; ValueError, TimeoutError for what is no request of a node."""
        path, method = head.path, head.method
        if method == "POST" and path == LOOK:
            return self._look(visit, head)
        if method != "GET" or head.size:
            return self._last(visit, 404)
        if path == MARK:
            return self._say(visit, 200, self.offer.mark())
        if path.startswith(IMAGES):
            return self._small(visit, path.removeprefix(IMAGES), wait_of(head.fields.get("prefer", "")))
        if path.startswith(PACKS):
            return self._pack(visit, head)
        return self._last(visit, 404)

    def _look(self, visit: Visit, head: Head) -> bool:
        """Raises ValueError for what is no Look."""
        if head.size > MOST_LOOK:
            raise ValueError
        look = parsed(visit.body(head.size, BODY_S), Look)
        return self._say(visit, 200, packed(self.offer.told(look)))

    def _small(self, visit: Visit, name: str, wait_s: float) -> bool:
        """Sends a small file, once it is there. Raises NotHere after `wait_s` seconds."""
        end = time.monotonic() + wait_s
        while True:
            try:
                with self.offer.small(name) as (fd, size):
                    self._send_file(visit, 200, fd, 0, size)
                return True
            except NotHere:
                if time.monotonic() >= end or self._ending.wait(_AGAIN_S):
                    raise

    def _pack(self, visit: Visit, head: Head) -> bool:
        """Raises ValueError without a range and a seal."""
        wanted = _RANGE.match(head.fields.get("range", ""))
        seal = _SEAL.match(head.fields.get("if-match", ""))
        if not wanted or not seal or int(wanted[2]) < int(wanted[1]):
            raise ValueError
        pack, at = head.path.removeprefix(PACKS), int(wanted[1])
        size = int(wanted[2]) + 1 - at
        if not self._begins():
            return self._say(visit, 503)
        try:
            with self.offer.run(pack, seal[1], at, size) as fd:
                self.offer.give(pack, at, size)
                with self._turns.turn():
                    self._send_file(visit, 206, fd, at, size)
        finally:
            with self._lock:
                self._sending -= 1
        with self._lock:
            self.sent += size
        return True

    def _begins(self) -> bool:
        """Counts an answer with bytes of a pack; returns whether it may begin."""
        with self._lock:
            if self._sending >= MOST_SENDING:
                return False
            self._sending += 1
            return True

    def _send_file(self, visit: Visit, status: int, fd: int, at: int, size: int) -> None:
        """Sends bytes of a file. Raises _BrokenOff for a file that is shorter, and for a peer that stalls."""
        try:
            visit.limit(STALLED_S)
            visit.send(answer_head(status, size))
            memory, end = _UNITS.buffer(UNIT), at + size
            while at < end:
                n = os.preadv(fd, [memory[: end - at]], at)
                if not n:
                    raise EOFError
                self.send(visit, memory[:n])
                at += n
        except (OSError, EOFError) as error:
            raise _BrokenOff(f"an answer of {size} bytes: {error!r}") from error

    def send(self, visit: Visit, data: memoryview) -> None:
        """Sends bytes; returns once there is room for more."""
        visit.send(data)


def run(store: Path, way: Listening, told: Callable[[], object]) -> None:
    """Answers until SIGTERM or SIGINT. `told` is called once it listens. Of the main thread."""
    with _ending() as wait, Exchange(store, way):
        told()
        wait()


@contextmanager
def _ending() -> Iterator[Callable[[], object]]:
    """Yields a function that returns once SIGTERM or SIGINT has come, to whichever thread."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in _ENDING}
        woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

        def wait() -> None:
            while ours.recv(1)[0] not in _ENDING:
                pass

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
