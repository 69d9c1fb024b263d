"""Connections of an exchange: how many there are, and how long one may stay that has not shown the token.

aiohttp limits the time between the requests of a connection; before the first one it waits for ever.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

MOST_CONNECTIONS = 512
GREETING_S = 10.0  # from the connection, TLS included, to a request with the token
_LOOK_S = 1.0


class Door:
    """All connections. `handler` makes aiohttp's part of one."""

    def __init__(self, handler: Callable[[], web.RequestHandler]) -> None:
        self.handler = handler
        self.strangers: dict[web.RequestHandler, Connection] = {}
        self.count = 0

    def connection(self) -> "Connection":
        return Connection(self)

    def known(self, handler: web.RequestHandler) -> None:
        """Says that this connection has shown the token."""
        self.strangers.pop(handler, None)

    async def run(self) -> None:
        """Closes the connections of strangers, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            late = asyncio.get_running_loop().time() - GREETING_S
            for each in [each for each in self.strangers.values() if each.since < late]:
                each.transport.abort()


class Connection(asyncio.Protocol):
    """Hands all that happens to aiohttp. `since`: when it began, in seconds of the loop's clock."""

    transport: asyncio.Transport

    def __init__(self, door: Door) -> None:
        self._door = door
        self._handler: web.RequestHandler | None = None
        self.since = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none, and does as one
        if self._door.count >= MOST_CONNECTIONS:
            self.transport.abort()
            return
        self._door.count += 1
        self._handler = self._door.handler()
        self._door.strangers[self._handler] = self
        self._handler.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        if self._handler:
            self._handler.data_received(data)

    def eof_received(self) -> None:
        if self._handler:
            self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if self._handler:
            self._door.count -= 1
            self._door.strangers.pop(self._handler, None)
            self._handler.connection_lost(error)

    def pause_writing(self) -> None:
        if self._handler:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler:
            self._handler.resume_writing()
