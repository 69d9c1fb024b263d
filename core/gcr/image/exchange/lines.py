"""Connections to one peer, each used by a thread, which reads the bytes of packs straight to where they are to lie.

An event loop decrypts and copies everything in one thread, at 0.5 GB/s. Threads wait, decrypt and copy without Python's
lock. But OpenSSL returns 16 KiB at most, and then a thread needs that lock. So the bytes of a body are read by nothing
else than the socket: through http.client each took three times as long with the lock held.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from threading import Lock
from typing import Any, TypeVar

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.heads import END, MOST_HEAD, AnswerHead, request_head
from gcr.image.exchange.wire import MARK, MOST_MARK

T = TypeVar("T")

CONNECT_S = 5.0
STALLED_S = 20.0  # an answer of which nothing came for so long is given up
MOST_LINES = 128  # of all peers; more requests than that wait
_HEAD_BYTES = 4096  # that are read at once, before the body
TELL_S = 0.2  # between two calls of `moved`


class NotSent(Exception):
    """A peer did not answer, or has not what it was asked for. The text says why."""


def threads() -> ThreadPoolExecutor:
    """Returns the threads of the lines to all peers."""
    return ThreadPoolExecutor(MOST_LINES, "gcr-line")


class Line:
    """One connection, made by the first request. One thread uses it at a time; `abort` may be called by another."""

    def __init__(self, address: PeerAddress, tls: ssl.SSLContext) -> None:
        self._name, self._address, self._tls = str(address), address, tls
        self._socket: socket.socket | None = None
        self._lock, self.aborted = Lock(), False

    def read(self, path: str, headers: Mapping[str, str], into: memoryview, moved: Callable[[], object]) -> None:
        """Fills `into` with the answer. Raises NotSent, PeerUnusable; the connection is of no use then."""
        with self._sent():
            made, head, came = self._answer(request_head(path, self._address.place, headers))
            refuse_status(self._name, head.status)
            if head.size != len(into):
                raise NotSent(f"it answers with {head.size} bytes instead of {len(into)}")
            self._body(made, head, came, into, moved)

    def whole(self, path: str, headers: Mapping[str, str], most: int, body: bytes | None) -> bytes | None:
        """Returns an answer of `most` bytes or fewer, None where there is none; with a body it posts that.

        Raises NotSent, PeerUnusable; the connection is of no use then.
        """
        with self._sent():
            size = None if body is None else len(body)
            made, head, came = self._answer(request_head(path, self._address.place, headers, size) + (body or b""))
            if head.status != HTTPStatus.NOT_FOUND:
                refuse_status(self._name, head.status)
            if head.size is None or head.size > most:
                raise NotSent(f"it answers with {head.size} bytes, and not with {most} or fewer")
            found = bytearray(head.size)
            self._body(made, head, came, memoryview(found), lambda: None)
            return None if head.status == HTTPStatus.NOT_FOUND else bytes(found)

    def greet(self, headers: Mapping[str, str]) -> None:
        """Connects, and shows the token: a peer soon ends connections of strangers. Raises NotSent, PeerUnusable."""
        self.whole(MARK, headers, MOST_MARK, None)

    @contextmanager
    def _sent(self) -> Iterator[None]:
        """Raises NotSent for what goes wrong on the way, PeerUnusable for a certificate that is not trusted."""
        try:
            yield
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise untrusted(self._name, error) from error
            raise NotSent(str(error)) from error
        except (OSError, ValueError) as error:
            raise NotSent(str(error) or type(error).__name__) from error

    def _body(
        self, made: socket.socket, head: AnswerHead, came: bytes, into: memoryview, moved: Callable[[], object]
    ) -> None:
        if len(came) > len(into):
            raise NotSent(f"it sends more than {len(into)} bytes")
        into[: len(came)] = came
        self._fill(made, into, len(came), moved)
        if head.is_last:
            self.close()

    def _fill(self, made: socket.socket, into: memoryview, at: int, moved: Callable[[], object]) -> None:
        told, end = time.monotonic(), len(into)
        while at < end:
            n = self.part(made, into[at:])
            if not n:
                raise NotSent(f"it broke off {end - at} bytes before its end")
            at += n
            if time.monotonic() > told + TELL_S:
                told = time.monotonic()
                moved()

    def part(self, made: socket.socket, into: memoryview) -> int:
        """Reads some bytes of a body; returns how many, 0 where it ends. Raises OSError."""
        return made.recv_into(into, len(into))

    def abort(self) -> None:
        """Ends the request under way; its thread raises NotSent."""
        with self._lock:
            self.aborted = True
            if self._socket:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # ssl's own would first take TLS away

    def close(self) -> None:
        with self._lock:
            made, self._socket = self._socket, None
        if made:
            made.close()

    def _answer(self, asked: bytes) -> tuple[socket.socket, AnswerHead, bytes]:
        """Asks, and once more where the peer has closed a connection that rested."""
        if self._socket:
            try:
                return self._asked(self._socket, asked)
            except ConnectionError:
                self.close()
        return self._asked(self._made(), asked)

    def _asked(self, made: socket.socket, asked: bytes) -> tuple[socket.socket, AnswerHead, bytes]:
        """Returns the head of the answer, and what came of its body with it. Raises OSError, ValueError."""
        made.sendall(asked)
        came = bytearray()
        while (end := came.find(END)) < 0:
            some = made.recv(_HEAD_BYTES)
            if not some:
                raise ConnectionResetError("the peer has closed the connection")
            came += some
            if len(came) > MOST_HEAD:
                raise ValueError("it answers with a head that is too long")
        return made, AnswerHead.parsed(bytes(came[:end])), bytes(came[end + len(END) :])

    def _made(self) -> socket.socket:
        """Connects. Raises OSError, NotSent where the request was given up meanwhile."""
        made = socket.create_connection((self._address.host, self._address.port), CONNECT_S)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._address.tls:
                made = self._tls.wrap_socket(made, server_hostname=self._address.host)
            made.settimeout(STALLED_S)
            with self._lock:
                if self.aborted:
                    raise NotSent("the request was given up")
                self._socket = made
        except BaseException:
            made.close()
            raise
        return made


class Lines:
    """The connections to one peer; one that rests serves the next request. Of one event loop."""

    def __init__(self, address: PeerAddress, token: str | None, tls: ssl.SSLContext, pool: ThreadPoolExecutor) -> None:
        self._address, self._tls, self._pool = address, tls, pool
        self._headers = bearer(token)
        self._resting: list[Line] = []
        self._working: dict[Line, asyncio.Future[Any]] = {}

    async def read(self, path: str, headers: Mapping[str, str], into: memoryview, moved: Callable[[], object]) -> None:
        """Fills `into` with an answer; calls `moved` as it comes. Raises NotSent, PeerUnusable."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(moved)

        await self._by(lambda line: line.read(path, {**self._headers, **headers}, into, tell))

    async def whole(
        self, path: str, most: int, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes | None:
        """Returns an answer of `most` bytes or fewer, None where there is none. Raises NotSent, PeerUnusable."""
        return await self._by(lambda line: line.whole(path, {**self._headers, **(headers or {})}, most, body))

    async def greet(self, number: int) -> None:
        """Makes so many connections, which rest then. Raises nothing: the first request says what is wrong."""
        asked = (self._by(lambda line: line.greet(self._headers)) for _ in range(number))
        await asyncio.gather(*asked, return_exceptions=True)

    async def _by(self, ask: Callable[[Line], T]) -> T:
        """Asks by a connection that rests, or by a new one."""
        line = self._resting.pop() if self._resting else Line(self._address, self._tls)
        work = asyncio.get_running_loop().run_in_executor(self._pool, ask, line)
        self._working[line] = work
        try:
            return await asyncio.shield(work)
        except BaseException:
            line.abort()  # a cancelled request goes on in its thread until then
            raise
        finally:
            work.add_done_callback(lambda done: self._over(line, done))

    async def close(self) -> None:
        """Ends all requests, and closes all connections."""
        for line in self._working:
            line.abort()
        await asyncio.gather(*self._working.values(), return_exceptions=True)
        for line in self._resting:
            line.close()
        self._resting.clear()

    def _over(self, line: Line, work: "asyncio.Future[Any]") -> None:
        self._working.pop(line, None)
        if work.cancelled() or work.exception() or line.aborted:  # its answer may have come just before
            line.close()
        else:
            self._resting.append(line)


def bearer(token: str | None) -> Mapping[str, str]:
    """Returns the header of each request that shows the token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def untrusted(name: str, error: Exception) -> PeerUnusable:
    hint = "--tls-ca with the authority of its certificate, and a name in that as HOST"
    return PeerUnusable(f"{name}: {error}", hint=hint)


def refuse_status(name: str, status: int) -> None:
    """Raises PeerUnusable, NotSent for an answer without what was asked for."""
    if status == 401:
        raise PeerUnusable(f"{name} does not know the token", hint="--token-file")
    if status not in (200, 206):
        raise NotSent(f"it answers with status {status}")
