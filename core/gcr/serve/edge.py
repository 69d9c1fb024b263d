"""Connections of clients: how many there are, how long each may be without a request, and which way a request goes.

A connection waits here until a request's head is whole. A plain request, as most are, is answered by `lane`. Any other
is handed to aiohttp with every byte so far, and its connection stays there.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from gcr.serve import refusals
from gcr.serve.config import ClientLimits
from gcr.serve.lane import Call, Head, Lane
from gcr.serve.refusals import Refusal

MOST_HEAD = 1 << 16  # bytes
FULL_AGAIN_S = 5.0
LINGER_S = 1.0  # a refused client may read its refusal so long
MOST_LEAVING = 64  # refused clients at once; others are closed without an answer
_HEAD_END = b"\r\n\r\n"


class Clients:
    """All connections of one front. `handler` makes aiohttp's part of one."""

    def __init__(self, limits: ClientLimits, handler: Callable[[], web.RequestHandler], lane: Lane) -> None:
        self.limits, self.handler, self.lane = limits, handler, lane
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
            self.lane.links.look(loop.time())

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
        self._head: Head | None = None
        self._call: Call | None = None
        self._paused = False
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
            if not self._busy:
                self._ask(seen)
            elif len(self._raw) > MOST_HEAD:  # requests before the answer to the last one: each is read in its turn
                self.transport.pause_reading()

    def eof_received(self) -> None:
        if self._handler:
            self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.open.discard(self)
        self._clients.leaving.discard(self)
        if self._handler:
            self._handler.connection_lost(error)
        if self._call:
            self._call.abandon()

    def pause_writing(self) -> None:
        self._paused = True
        if self._handler:
            self._handler.pause_writing()
        elif self._call:
            self._call.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._handler:
            self._handler.resume_writing()
        elif self._call:
            self._call.resume()
        else:
            self._go_on()

    # ---- requests -----------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Returns whether the last answer is not with the client yet."""
        return self._call is not None or self._paused

    def _ask(self, seen: int = 0) -> None:
        """Begins the next request if it is whole. `seen`: no head ends before that place."""
        if self._head is None:
            end = self._raw.find(_HEAD_END, seen) + len(_HEAD_END)
            if end >= len(_HEAD_END):
                self._head = self._clients.lane.head(bytes(self._raw[:end]))
                if self._head is None:
                    self._hand_over()
            elif len(self._raw) > MOST_HEAD:
                text = f"the first {MOST_HEAD} bytes are no whole head of a request"
                self._refuse(Refusal(refusals.HEAD_TOO_LARGE, text))
        if self._head and len(self._raw) >= self._head.whole:
            self._begin(self._head)

    def _begin(self, head: Head) -> None:
        call = self._clients.lane.call(self, head, bytes(self._raw[head.end : head.whole]))
        if call is None:
            self._hand_over()
            return
        del self._raw[: head.whole]
        self._head, self._call = None, call
        call.begin()

    def answered(self, keeps: bool) -> None:
        """The call has its whole answer. The next request may be there already."""
        self._call = None
        self.since = asyncio.get_running_loop().time()
        if not keeps:
            self.transport.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._raw and not self._busy and not self.transport.is_closing():
            self.transport.resume_reading()
            self._ask()

    def _hand_over(self) -> None:
        self._handler = self._clients.handler()
        self._handler.connection_made(self.transport)
        raw, self._raw, self._head = bytes(self._raw), bytearray(), None
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
        """Closes it if no head was whole for too long. aiohttp closes its own, and limits the time of bodies."""
        idle = self._clients.limits.idle
        if self._handler or self._busy or now - self.since < idle:
            return
        if self._head:
            self._hand_over()
        elif self._raw:
            self._refuse(Refusal(refusals.SLOW_REQUEST, f"the head was not whole after {idle:g} s"))
        else:
            self.transport.close()

    def end(self) -> None:
        """Closes what is not aiohttp's, in the middle of an answer if need be."""
        if self._call:
            self.transport.abort()
        elif not self._handler:
            self.transport.close()
