"""Connections to the models' servers: one request at a time on each, and the answer back as it comes.

httptools (llhttp, the parser of Node.js) takes answers apart. A server may say anything: what is no HTTP ends the
connection, and what comes after an answer's end is passed to no client.
"""

import asyncio
from collections import defaultdict
from typing import Protocol, cast

import httptools

from gcr.serve.ports import LOOPBACK
from gcr.serve.proxy import CONNECT_S, HOP_BY_HOP, UNUSED_S

_HOP = frozenset(name.encode() for name in HOP_BY_HOP)
_NO_BODY = (204, 304)


class Asker(Protocol):
    """A request that a link has."""

    head_only: bool

    def begun(self, status: int) -> bytes:
        """The answer begins; interim ones do not count. Returns header lines to add."""

    def write(self, data: bytes) -> None: ...

    def ended(self) -> None:
        """The answer is whole."""

    def broken(self) -> None:
        """The answer will not be whole."""


class Links:
    """Belongs to one event loop. Idle links are kept as long as `proxy` keeps its own."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[Link]] = defaultdict(list)

    def take(self, model: str, port: int) -> "Link | None":
        now = asyncio.get_running_loop().time()
        idle = self._idle[model]
        while idle:
            link = idle.pop()
            if link.port == port and now - link.since < UNUSED_S and not link.transport.is_closing():
                return link
            link.transport.close()
        return None

    async def made(self, model: str, port: int) -> "Link":
        """Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, link = await loop.create_connection(lambda: Link(self, model, port), LOOPBACK, port)
        return link

    def keep(self, link: "Link") -> None:
        self._idle[link.model].append(link)

    def lost(self, link: "Link") -> None:
        if link in self._idle[link.model]:
            self._idle[link.model].remove(link)

    def look(self, now: float) -> None:
        for idle in self._idle.values():
            for link in idle:
                if now - link.since >= UNUSED_S:
                    link.transport.close()

    def close(self, model: str) -> None:
        for link in self._idle.pop(model, ()):
            link.transport.close()

    def close_all(self) -> None:
        for model in list(self._idle):
            self.close(model)


class Link(asyncio.Protocol):
    """A connection to a server. `since`: when it became idle, in seconds of the loop's clock."""

    def __init__(self, links: Links, model: str, port: int) -> None:
        self._links, self.model, self.port, self.since = links, model, port, 0.0
        self._asker: Asker | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, asker: Asker, request: bytes) -> None:
        self._asker = asker
        self._answer = _Answer(asker)
        self.transport.write(request)

    def drop(self) -> None:
        """The asker has left: so does this connection."""
        self._asker = None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        asker, answer = self._asker, self._answer if self._asker else None
        if asker is None or answer is None:  # it was not asked
            self.transport.abort()
            return
        try:
            answer.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not answer.done:
                self._break()
                return
        if answer.out:
            asker.write(b"".join(answer.out))
            answer.out.clear()
        if answer.done:
            self._end(asker, answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._links.lost(self)
        if self._asker is None:
            return
        if error is None and self._answer.until_end:
            if self._answer.chunks:
                self._asker.write(b"0\r\n\r\n")
            self._end(self._asker, self._answer)
        else:
            self._break()

    def _end(self, asker: Asker, answer: "_Answer") -> None:
        self._asker = None
        if answer.reusable and not answer.more and not self.transport.is_closing():
            self.since = asyncio.get_running_loop().time()
            self._links.keep(self)
        else:
            self.transport.close()
        asker.ended()

    def _break(self) -> None:
        asker, self._asker = self._asker, None
        self.transport.abort()
        if asker:
            asker.broken()


class _Answer:
    """Callbacks of httptools for one answer; `out` is what the client gets of it.

    until_end: the connection's end is the answer's · chunks: the client gets it in chunks · done: it is whole
    more: the server sent something after it · reusable: the server keeps the connection
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.parser = httptools.HttpResponseParser(self)
        self.out: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._interim = False
        self.until_end = self.chunks = self.done = self.more = self.reusable = False

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_message_begin(self) -> None:
        self.more = self.more or self.done
        self._headers, self._reason = [], b""

    def on_headers_complete(self) -> None:
        if self.done:
            return
        status = self.parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            return
        self.reusable = self.parser.should_keep_alive()
        lines = [b"HTTP/1.1 %d %b" % (status, self._reason), *self._passed()]
        names = {name.lower(): value for name, value in self._headers}
        self.done = self._asker.head_only
        if not self.done and status not in _NO_BODY and b"content-length" not in names:
            self.chunks = True
            self.until_end = b"chunked" not in names.get(b"transfer-encoding", b"").lower()
            lines.append(b"Transfer-Encoding: chunked")
        self.out.append(b"\r\n".join(lines) + b"\r\n" + self._asker.begun(status) + b"\r\n")

    def _passed(self) -> list[bytes]:
        dropped = _HOP
        for name, value in self._headers:
            if name.lower() == b"connection":
                dropped = dropped | {each.strip() for each in value.lower().split(b",")}
        return [b"%b: %b" % each for each in self._headers if each[0].lower() not in dropped]

    def on_body(self, piece: bytes) -> None:
        if self.done:
            self.more = True
        else:
            self.out.append(b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunks else piece)

    def on_message_complete(self) -> None:
        if self._interim or self.done:
            return
        if self.chunks:
            self.out.append(b"0\r\n\r\n")
        self.done = True
