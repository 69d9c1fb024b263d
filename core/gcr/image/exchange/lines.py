"""Connections to one peer for the bytes of packs, each read by a thread straight to where these bytes are to lie.

An event loop decrypts and copies everything in one thread, at 0.5 GB/s. Threads wait, decrypt and copy without Python's
lock.
"""

import asyncio
import http.client
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Lock

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange.address import PeerAddress

CONNECT_S = 5.0
STALLED_S = 20.0  # an answer of which nothing came for so long is given up
MOST_LINES = 64  # of all peers; more requests than that wait
SLICE_BYTES = 256 << 10  # of an answer that are read at once
TELL_S = 0.2  # between two calls of `moved`


class NotSent(Exception):
    """A peer did not answer, or has not what it was asked for. The text says why."""


def threads() -> ThreadPoolExecutor:
    """Returns the threads of the lines to all peers."""
    return ThreadPoolExecutor(MOST_LINES, "gcr-line")


class Line:
    """One connection, made by the first request. One thread uses it at a time; `abort` may be called by another."""

    def __init__(self, address: PeerAddress, tls: ssl.SSLContext) -> None:
        self._name = str(address)
        if address.tls:
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=CONNECT_S, context=tls
            )
        else:
            self._http = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)
        self._lock, self._aborted = Lock(), False

    def read(self, path: str, headers: Mapping[str, str], into: memoryview, moved: Callable[[], object]) -> None:
        """Fills `into` with the answer. Raises NotSent, PeerUnusable; the connection is of no use then."""
        try:
            with closing(self._answer(path, headers)) as answer:
                self._refuse(answer, len(into))
                self._fill(answer, into, moved)
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise untrusted(self._name, error) from error
            raise NotSent(str(error)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            traceback.clear_frames(error.__traceback__)  # of http.client, which has the socket open there still
            raise NotSent(str(error) or type(error).__name__) from error

    def _fill(self, answer: http.client.HTTPResponse, into: memoryview, moved: Callable[[], object]) -> None:
        at, told = 0, time.monotonic()
        while at < len(into):
            at += self.part(answer, into[at : at + SLICE_BYTES])
            if time.monotonic() > told + TELL_S:
                told = time.monotonic()
                moved()

    def part(self, answer: http.client.HTTPResponse, into: memoryview) -> int:
        """Reads bytes of an answer. Raises NotSent where it ends, OSError."""
        n = answer.readinto(into)
        if not n:
            raise NotSent(f"it broke off {answer.length} bytes before its end")
        return n

    def abort(self) -> None:
        """Ends the request under way; its thread raises NotSent."""
        with self._lock:
            self._aborted = True
            if self._http.sock:
                with suppress(OSError):
                    self._http.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()

    def _answer(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Asks, and once more where the peer has closed a connection that rested."""
        rested = self._http.sock is not None
        try:
            return self._asked(path, headers)
        except ConnectionError:
            if not rested:
                raise
        self._http.close()
        return self._asked(path, headers)

    def _asked(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if self._http.sock is None:
            self._http.connect()
            _patient(self._http.sock)
        with self._lock:
            if self._aborted:
                raise NotSent("the request was given up")
        self._http.request("GET", path, headers=dict(headers))
        return self._http.getresponse()

    def _refuse(self, answer: http.client.HTTPResponse, size: int) -> None:
        refuse_status(self._name, answer.status)
        if answer.length != size:
            raise NotSent(f"it answers with {answer.length} bytes instead of {size}")


class Lines:
    """The connections to one peer; one that rests serves the next request. Of one event loop."""

    def __init__(self, address: PeerAddress, token: str | None, tls: ssl.SSLContext, pool: ThreadPoolExecutor) -> None:
        self._address, self._tls, self._pool = address, tls, pool
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._resting: list[Line] = []
        self._working: dict[Line, asyncio.Future[None]] = {}

    async def read(self, path: str, headers: Mapping[str, str], size: int, moved: Callable[[], object]) -> bytearray:
        """Returns `size` bytes of an answer; calls `moved` as they come. Raises NotSent, PeerUnusable."""
        loop, found = asyncio.get_running_loop(), bytearray(size)
        line = self._resting.pop() if self._resting else Line(self._address, self._tls)

        def tell() -> None:
            loop.call_soon_threadsafe(moved)

        work = loop.run_in_executor(self._pool, line.read, path, {**self._headers, **headers}, memoryview(found), tell)
        self._working[line] = work
        try:
            await asyncio.shield(work)
        except BaseException:
            line.abort()  # a cancelled request goes on in its thread until then
            raise
        finally:
            work.add_done_callback(lambda done: self._over(line, done))
        return found

    async def close(self) -> None:
        """Ends all requests, and closes all connections."""
        for line in self._working:
            line.abort()
        await asyncio.gather(*self._working.values(), return_exceptions=True)
        for line in self._resting:
            line.close()
        self._resting.clear()

    def _over(self, line: Line, work: "asyncio.Future[None]") -> None:
        self._working.pop(line, None)
        if work.cancelled() or work.exception():
            line.close()
        else:
            self._resting.append(line)


def _patient(made: socket.socket | None) -> None:
    if made:
        made.settimeout(STALLED_S)


def untrusted(name: str, error: Exception) -> PeerUnusable:
    hint = "--tls-ca with the authority of its certificate, and a name in that as HOST"
    return PeerUnusable(f"{name}: {error}", hint=hint)


def refuse_status(name: str, status: int) -> None:
    """Raises PeerUnusable, NotSent for an answer without what was asked for."""
    if status == 401:
        raise PeerUnusable(f"{name} does not know the token", hint="--token-file")
    if status not in (200, 206):
        raise NotSent(f"it answers with status {status}")
