"""`gcr exchange` from its begin to its end: it answers the requests of wire.py from one store."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from msgspec import Struct

from gcr.image.exchange.door import GREETING_S, Door
from gcr.image.exchange.lease import Lease
from gcr.image.exchange.loop import new_loop
from gcr.image.exchange.offer import NotHere, Offer
from gcr.image.exchange.turns import Turns
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, MOST_LOOK, PACKS, Look, packed, parsed
from gcr.imageerrors import Damaged
from gcr.listening import BACKLOG
from gcr.tokens import is_shown

log = logging.getLogger(__name__)

UNIT = 512 << 10  # bytes that are read and sent at once; each request has so much in memory, or twice
MOST_SENDING = 64  # answers with bytes of packs or small files at once
STALLED_S = 30.0  # a peer that takes none of a unit for so long is given up
IDLE_S = 75.0  # between two requests of a connection
BODY_S = 10.0
_LAST_WORDS_S = 1.0
_THREADS = 8
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})\Z")
_SEAL = re.compile(r'"([0-9a-f]{64})"\Z')
_HEADERS = {"Server": "gcr", "Content-Type": "application/octet-stream"}

T = TypeVar("T")


class Listening(Struct, frozen=True):
    """The way in: a socket that listens, and TLS or None for a loopback address."""

    socket: socket.socket
    tls: ssl.SSLContext | None
    token: str


class Exchange:
    """One running exchange. `async with` it: it answers within."""

    def __init__(self, store: Path, way: Listening) -> None:
        self._way, self._store = way, store
        self.offer = Offer(store)
        self.sent = 0  # bytes of packs
        self._sending = 0
        self._turns = Turns()
        self._threads = ThreadPoolExecutor(_THREADS, "gcr-exchange")
        handler = web.Server(self.handle, handler_cancellation=True, access_log=None, keepalive_timeout=IDLE_S)
        self._runner = web.ServerRunner(handler, shutdown_timeout=_LAST_WORDS_S)
        self._door = Door(handler)

    async def __aenter__(self) -> "Exchange":
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._lease = Lease(self._store)
        self._listening = await loop.create_server(
            self._door.connection,
            sock=self._way.socket,
            ssl=self._way.tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=GREETING_S if self._way.tls else None,
        )
        self._running = [asyncio.create_task(each()) for each in (self._door.run, self._lease.run)]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._listening.close()
        for task in self._running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._runner.cleanup()
        self._threads.shutdown()
        self._lease.end()
        self.offer.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers a request; one without the token learns nothing."""
        if not is_shown(self._way.token, request.headers.get("authorization", "")):
            return _closing(web.Response(status=401, headers={"Server": "gcr", "WWW-Authenticate": "Bearer"}))
        self._door.known(request.protocol)
        answer = self._answer_of(request)
        if answer is None:
            return _closing(web.Response(status=404, headers=_HEADERS))
        try:
            await self._lease.renew()
            return await answer(request)
        except (NotHere, Damaged, FileNotFoundError):
            return web.Response(status=404, headers=_HEADERS)
        except (ValueError, TimeoutError):
            return _closing(web.Response(status=400, headers=_HEADERS))
        except ConnectionError as error:  # the peer has left
            log.info("%s: %s", self._store, error)
            return _closing(web.Response(status=503, headers=_HEADERS))
        except OSError as error:
            log.warning("%s: %s", self._store, error)
            return _closing(web.Response(status=503, headers=_HEADERS))

    def _answer_of(self, request: web.BaseRequest) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None:
        path, method = request.path, request.method
        if method == "POST" and path == LOOK:
            return self._look
        if method != "GET":
            return None
        if path == MARK:
            return self._mark
        return self._small if path.startswith(IMAGES) else self._pack if path.startswith(PACKS) else None

    async def _mark(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=await self._at_disk(self.offer.mark), headers=_HEADERS)

    async def _look(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises ValueError for what is no Look."""
        body = bytearray()
        async with asyncio.timeout(BODY_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > MOST_LOOK:
                    raise ValueError
        look = parsed(bytes(body), Look)
        return web.Response(body=packed(await self._at_disk(lambda: self.offer.told(look))), headers=_HEADERS)

    async def _small(self, request: web.BaseRequest) -> web.StreamResponse:
        with self.offer.small(request.path.removeprefix(IMAGES)) as (fd, size):
            return await self._answered(request, 200, fd, 0, size)

    async def _pack(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises ValueError without a range and a seal."""
        wanted = _RANGE.match(request.headers.get("range", ""))
        seal = _SEAL.match(request.headers.get("if-match", ""))
        if not wanted or not seal or int(wanted[2]) < int(wanted[1]):
            raise ValueError
        pack, at = request.path.removeprefix(PACKS), int(wanted[1])
        size = int(wanted[2]) + 1 - at
        if self._sending >= MOST_SENDING:
            return web.Response(status=503, headers=_HEADERS)
        self._sending += 1
        try:
            opening = self.offer.run(pack, seal[1], at, size)
            fd = await self._at_disk(opening.__enter__)
            with contextlib.ExitStack() as stack:
                stack.push(opening.__exit__)
                self.offer.give(pack, at, size)
                async with self._turns.turn():
                    answer = await self._answered(request, 206, fd, at, size)
                self.sent += size
                return answer
        finally:
            self._sending -= 1

    async def _answered(self, request: web.BaseRequest, status: int, fd: int, at: int, size: int) -> web.StreamResponse:
        """Sends bytes of a file. A file that is shorter breaks the answer off, and so does a peer that stalls."""
        answer = web.StreamResponse(status=status, headers={**_HEADERS, "Content-Length": str(size)})
        await answer.prepare(request)
        end = at + size
        try:
            while at < end:
                data = await self._at_disk(partial(os.pread, fd, min(UNIT, end - at), at))
                if not data:
                    raise EOFError
                async with asyncio.timeout(STALLED_S):
                    await self.send(answer, data)
                at += len(data)
        except (OSError, EOFError, TimeoutError) as error:
            log.info("an answer of %d bytes broke off: %r", size, error)
            if request.transport:
                request.transport.abort()
        return answer

    async def send(self, answer: web.StreamResponse, data: bytes) -> None:
        """Sends bytes; returns once there is room for more."""
        await answer.write(data)

    async def _at_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _closing(answer: web.Response) -> web.Response:
    answer.force_close()
    return answer


def run(store: Path, way: Listening, told: Callable[[], object]) -> None:
    """Answers until SIGTERM or SIGINT. `told` is called once it listens."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(store, way, told))


async def _serve(store: Path, way: Listening, told: Callable[[], object]) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    async with Exchange(store, way):
        told()
        await ending.wait()
