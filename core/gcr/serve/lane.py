"""The short way of a plain request: no body or a short one of a told length, for a model by its name.

A request that is not plain, or that names no model, is left to `front`: one place says why it is refused. A plain one
goes to the model's server in one piece, and takes no task where its model is there and a link to it is idle.
"""

import asyncio
import hmac
from typing import Protocol
from urllib.parse import unquote_to_bytes

import httptools
import msgspec

from gcr.serve import refusals
from gcr.serve.config import ServeConfig
from gcr.serve.link import Link, Links
from gcr.serve.metrics import Metrics
from gcr.serve.pool import Pool
from gcr.serve.ports import LOOPBACK
from gcr.serve.proxy import AGAIN_S
from gcr.serve.refusals import Refusal

LONGEST_BODY = 1 << 16
GONE = 499  # the status that is counted for a client that has left
UPSTREAM = b"/upstream/"
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))
_DROPPED = frozenset((b"host", b"content-length", b"connection", b"keep-alive", b"proxy-connection"))
_DROPPED |= {b"proxy-authenticate", b"proxy-authorization"}


class _Body(msgspec.Struct):
    model: str


_body = msgspec.json.Decoder(_Body)


class Head:
    """A request's head, by httptools. Raises ValueError for one that is not plain.

    end: its bytes · length: those of the body, None where no length is told · lines: to be passed on
    """

    def __init__(self, raw: bytes) -> None:
        self.end, self.target, self.authorization = len(raw), b"", b""
        self.length: int | None = None
        self.keeps = True
        self.lines: list[bytes] = []
        self._heads = self._hosts = 0
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(raw)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ValueError(str(error)) from None
        self.method = parser.get_method()
        plain = self._heads == self._hosts == 1 and self.method in _METHODS and parser.get_http_version() == "1.1"
        if not plain or self.target[:1] != b"/" or b"#" in self.target:
            raise ValueError("not plain")

    @property
    def whole(self) -> int:
        """Returns the bytes of the request."""
        return self.end + (self.length or 0)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        low = name.lower()
        if low in _NOT_PLAIN:
            raise ValueError("not plain")
        if low == b"authorization":
            self.authorization = value
        elif low == b"content-length":
            self.length = int(value)
        elif low == b"host":
            self._hosts += 1
        elif low == b"connection":
            self.keeps = value.lower() != b"close"
            if self.keeps and value.lower() != b"keep-alive":
                raise ValueError("not plain")
        if low not in _DROPPED:
            self.lines.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        self._heads += 1


class Client(Protocol):
    """The connection that a call came by."""

    transport: asyncio.Transport

    def answered(self, keeps: bool) -> None:
        """The answer is whole. `keeps`: the client wants to go on."""


class Lane:
    """Belongs to one event loop."""

    def __init__(self, config: ServeConfig, pool: Pool, metrics: Metrics) -> None:
        self.config, self.pool, self.metrics = config, pool, metrics
        self.links = Links()
        self._called = config.called()
        self._token = None if config.token is None else f"Bearer {config.token}".encode()

    def head(self, raw: bytes) -> Head | None:
        """Returns None where the request is not plain."""
        if raw.count(b"\n") != raw.count(b"\r\n"):  # parsers differ about lines that end otherwise
            return None
        try:
            head = Head(raw)
        except ValueError:
            return None
        if self._token is not None and not hmac.compare_digest(head.authorization, self._token):
            return None
        return head if (head.length or 0) <= min(LONGEST_BODY, self.config.clients.max_body) else None

    def call(self, client: Client, head: Head, body: bytes) -> "Call | None":
        """Returns None where it names no model that is known."""
        path, mark, query = head.target.partition(b"?")
        name: str | None = None
        target = head.target
        if path.startswith(UPSTREAM):
            quoted, _, rest = path.removeprefix(UPSTREAM).partition(b"/")
            name, target = unquote_to_bytes(quoted).decode(errors="replace"), b"/" + rest + mark + query
        elif path.startswith(b"/v1/") and body:
            try:
                name = _body.decode(body).model
            except (msgspec.DecodeError, RecursionError):
                return None
        model = None if name is None else self._called.get(name)
        return None if model is None else Call(self, client, model, head, self._request(head, target, body))

    def _request(self, head: Head, target: bytes, body: bytes) -> bytes:
        lines = head.lines
        if self._token is not None:
            lines = [each for each in lines if each[:14].lower() != b"authorization:"]
        begin = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method, target, LOOPBACK.encode())
        length = b"" if head.length is None else b"Content-Length: %d\r\n" % len(body)
        return b"".join((begin, *lines, length, b"\r\n", body))


class Call:
    """One request with its model, from its turn to the answer's end."""

    def __init__(self, lane: Lane, client: Client, model: str, head: Head, request: bytes) -> None:
        self._lane, self._client, self._model, self._request = lane, client, model, request
        self.head_only, self._keeps = head.method == b"HEAD", head.keeps
        self._began = asyncio.get_running_loop().time()
        self._status = GONE
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        job = self._lane.pool.at_once(self._model)
        if job:
            self._link = self._lane.links.take(self._model, job.port)
            if self._link:
                self._link.ask(self, self._request)
                return
            self._lane.pool.release(self._model)
        self._task = asyncio.get_running_loop().create_task(self._reach())

    async def _reach(self) -> None:
        """A server that cannot be reached has seen nothing: it is tried again until the deadline."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._lane.config.models[self._model].wait
        try:
            while not await self._reached(deadline):
                if now() > deadline:
                    raise Refusal(refusals.DEADLINE, f"the server of {self._model} is not reached")
                await asyncio.sleep(AGAIN_S)
        except Refusal as refusal:
            self._refuse(refusal)

    async def _reached(self, deadline: float) -> bool:
        """Waits for the model's turn, and makes a link."""
        pool = self._lane.pool
        job = await pool.acquire(self._model, deadline)
        try:
            self._link = await self._lane.links.made(self._model, job.port)
        except OSError:  # a TimeoutError is one
            pool.suspect()
            return False
        finally:
            if self._link is None:
                pool.release(self._model)
        self._link.ask(self, self._request)
        return True

    # ---- what a link says ---------------------------------------------------------------------------------------

    def begun(self, status: int) -> bytes:
        self._status = status
        return b"" if self._keeps else b"Connection: close\r\n"

    def write(self, data: bytes) -> None:
        self._client.transport.write(data)

    def ended(self) -> None:
        self._leave(self._status)
        self._client.answered(self._keeps)

    def broken(self) -> None:
        """The client must not take a part for the whole."""
        self._lane.pool.suspect()
        if self._status != GONE:
            self._leave(GONE)
            self._client.transport.abort()
            return
        text = f"the server of {self._model} closed the connection and sent no answer"
        self._refuse(Refusal(refusals.UPSTREAM_GONE, text))

    # ---- what the client does -----------------------------------------------------------------------------------

    def pause(self) -> None:
        if self._link:
            self._link.transport.pause_reading()

    def resume(self) -> None:
        if self._link:
            self._link.transport.resume_reading()

    def abandon(self) -> None:
        """The client has left."""
        if self._task:
            self._task.cancel()
        if self._link:
            self._link.drop()
        self._leave(GONE)

    def _refuse(self, refusal: Refusal) -> None:
        self._leave(refusal.kind.status)
        self._client.transport.write(refusal.answer(keeps=self._keeps))
        self._client.answered(self._keeps)

    def _leave(self, status: int) -> None:
        if self._link:
            self._link = None
            self._lane.pool.release(self._model)
        self._lane.metrics.answered(self._model, status, asyncio.get_running_loop().time() - self._began)
