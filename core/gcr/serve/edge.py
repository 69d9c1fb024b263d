"""Connections of clients: how many there are, and how long each may be without a request.

A connection waits here until a request's head is whole; from then on it is aiohttp's, with every byte so far.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from gcr.serve import refusals
from gcr.serve.config import ClientLimits
from gcr.serve.refusals import Refusal

MOST_HEAD = 1 << 16  # bytes
FULL_AGAIN_S = 5.0
LINGER_S = 1.0  # a refused client may read its refusal so long
MOST_LEAVING = 64  # refused clients at once; others are closed without an answer
_HEAD_END = b"\r\n\r\n"


class Clients:
    """All connections of one front. `handler` makes aiohttp's part of one."""

    def __init__(self, limits: ClientLimits, handler: Callable[[], web.RequestHandler]) -> None:
        self.limits, self.handler = limits, handler
        self.open: set[Edge] = set()
        self.leaving: set[Edge] = set()

    def connection(self) -> "Edge":
        return Edge(self)

    async def run(self) -> None:
        """Closes idle connections, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.limits.idle / 4))
            for edge in list(self.open):
                edge.look(loop.time())

    def close(self) -> None:
        for edge in (*self.open, *self.leaving):
            edge.end()


class Edge(asyncio.Protocol):
    """A client's connection. `since`: when it began to wait for a request, in seconds of the loop's clock."""

    transport: asyncio.Transport
    since: float

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._raw = bytearray()
        self._handler: web.RequestHandler | None = None

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none, and does as one
        self.since = asyncio.get_running_loop().time()
        most = self._clients.limits.connections
        if len(self._clients.open) < most:
            self._clients.open.add(self)
        else:
            self._refuse(Refusal(refusals.TOO_MANY_CONNECTIONS, f"there are {most} connections already", FULL_AGAIN_S))

    def data_received(self, data: bytes) -> None:
        if self._handler:
            self._handler.data_received(data)
        elif self not in self._clients.leaving:
            seen = max(0, len(self._raw) - len(_HEAD_END))
            self._raw += data
            self._ask(seen)

    def eof_received(self) -> None:
        if self._handler:
            self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.open.discard(self)
        self._clients.leaving.discard(self)
        if self._handler:
            self._handler.connection_lost(error)

    def pause_writing(self) -> None:
        if self._handler:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler:
            self._handler.resume_writing()

    # ---- requests -----------------------------------------------------------------------------------------------

    def _ask(self, seen: int) -> None:
        """Begins the next request if its head is whole. `seen`: no head ends before that place."""
        if self._raw.find(_HEAD_END, seen) >= 0:
            self._hand_over()
        elif len(self._raw) > MOST_HEAD:
            self._refuse(
                Refusal(refusals.HEAD_TOO_LARGE, f"the first {MOST_HEAD} bytes are no whole head of a request")
            )

    def _hand_over(self) -> None:
        self._handler = self._clients.handler()
        self._handler.connection_made(self.transport)
        raw, self._raw = bytes(self._raw), bytearray()
        self._handler.data_received(raw)

    # ---- ends ---------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        """Answers with a refusal, and closes once the client has read it, or soon."""
        self._clients.open.discard(self)
        self._raw.clear()
        if len(self._clients.leaving) >= MOST_LEAVING:
            self.transport.abort()
            return
        self._clients.leaving.add(self)
        self.transport.write(refusal.answer(keeps=False))
        self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def look(self, now: float) -> None:
        """Closes it if no head was whole for too long. aiohttp closes its own."""
        idle = self._clients.limits.idle
        if self._handler or now - self.since < idle:
            return
        if self._raw:
            self._refuse(Refusal(refusals.SLOW_REQUEST, f"the head was not whole after {idle:g} s"))
        else:
            self.transport.close()

    def end(self) -> None:
        """Closes what is not aiohttp's."""
        if not self._handler:
            self.transport.close()
