"""Passes a request on to a model's server, and its answer back as it comes.

Connections to a server are kept for the next request, until the model is parked: a server may close them when it wakes.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Collection, Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from gcr.serve import refusals
from gcr.serve.ports import LOOPBACK
from gcr.serve.refusals import Refusal

SMALL = 1 << 16  # an answer of a known length up to this is passed on in one piece
CONNECT_S = 5.0
AGAIN_S = 0.05  # between two attempts to reach a server that does not listen any more
UNUSED_S = 2.0  # a connection is kept so long: less than servers keep theirs, for a request that meets its end fails

HOP_BY_HOP = (
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_OURS = ("host", "content-length", "expect", "authorization")  # of a request


class NotReached(Exception):
    """No connection could be made, so the server has seen nothing of the request."""


class Proxy:
    """Belongs to one event loop."""

    def __init__(self, keeps_authorization: bool) -> None:
        dropped = {*HOP_BY_HOP, *_OURS}
        self._dropped = dropped - {"authorization"} if keeps_authorization else dropped
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def forward(
        self, request: web.BaseRequest, model: str, port: int, path: str, body: bytes | AsyncIterator[bytes] | None
    ) -> tuple[web.StreamResponse, int]:
        """Returns the answer, which has been sent or is to be sent, and its status. Raises NotReached, Refusal.

        path: with the query, as it came, percent signs and all
        """
        url = URL(f"http://{LOOPBACK}:{port}{path}", encoded=True)
        headers = self._passed(request.headers, self._dropped)
        if isinstance(body, AsyncIterator) and request.content_length is not None:
            headers["Content-Length"] = str(request.content_length)
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > SMALL else body
        try:
            answer = await self._session(model).request(
                request.method, url, data=data, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectorError as error:
            raise NotReached(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"the server of {model} closed the connection and sent no answer"
            raise Refusal(refusals.UPSTREAM_GONE, text) from error
        async with answer:
            return await self._passed_back(request, answer, model), answer.status

    async def close(self, model: str) -> None:
        """Closes the connections to a model's server."""
        if session := self._sessions.pop(model, None):
            await session.close()

    async def close_all(self) -> None:
        for model in list(self._sessions):
            await self.close(model)

    async def _passed_back(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, model: str
    ) -> web.StreamResponse:
        headers = self._passed(answer.headers, HOP_BY_HOP)
        length = answer.content_length
        if length is not None and length <= SMALL and request.method != "HEAD":
            try:
                whole = await answer.read()
            except (aiohttp.ClientError, OSError) as error:
                text = f"the server of {model} ended in the middle of its answer"
                raise Refusal(refusals.UPSTREAM_GONE, text) from error
            headers.popall("content-length", None)
            return web.Response(status=answer.status, reason=answer.reason, headers=headers, body=whole)
        return await _streamed(request, answer, headers)

    def _session(self, model: str) -> aiohttp.ClientSession:
        session = self._sessions.get(model)
        if session is None:
            session = self._sessions[model] = aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=UNUSED_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                max_line_size=1 << 16,
                max_field_size=1 << 16,
            )
        return session

    @staticmethod
    def _passed(headers: Mapping[str, str], dropped: Collection[str]) -> CIMultiDict[str]:
        """Returns all headers but those that are about one connection."""
        named = headers.get("connection", "").lower()
        more = {each.strip() for each in named.split(",")} if named else ()
        return CIMultiDict(
            (name, value) for name, value in headers.items() if name.lower() not in dropped and name.lower() not in more
        )


async def _streamed(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, headers: CIMultiDict[str]
) -> web.StreamResponse:
    """Each piece is written before the next is read, so a slow client slows the server, not this process's memory."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError):
        if request.transport is not None:
            request.transport.abort()  # the client must not take a part for the whole
    return response
