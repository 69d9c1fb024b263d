"""The HTTP front: finds the model that a request asks for, waits for its turn, and has it answered."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from gcr.serve import refusals
from gcr.serve.config import ServeConfig
from gcr.serve.metrics import Metrics
from gcr.serve.page import page
from gcr.serve.pool import Pool
from gcr.serve.proxy import AGAIN_S, NotReached, Proxy
from gcr.serve.refusals import Refusal
from gcr.serve.status import Status
from gcr.tokens import is_shown

log = logging.getLogger(__name__)

UPSTREAM = "/upstream/"
MODELS = "/v1/models"
BODY_S = 300.0  # a body that is not whole after so long is refused
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Front:
    """Handler of a low-level aiohttp server."""

    def __init__(self, config: ServeConfig, pool: Pool, proxy: Proxy, metrics: Metrics, status: Status) -> None:
        self._config, self._pool, self._proxy, self._metrics, self._status = config, pool, proxy, metrics, status
        self._called = config.called()
        self._own = {
            "/": self._page,
            "/health": self._health,
            "/metrics": self._metrics_page,
            "/status": self._status_page,
            MODELS: self._models,
        }
        self._created = int(time.time())

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.monotonic()
        model, status = "", 499  # a client that has left
        try:
            self._check_token(request)
            if own := self._own_page(request):
                shown = await own(request)
                status = shown.status
                return shown
            model, path, body = await self._asked(request)
            answer, status = await self._answered(request, model, path, body)
            return answer
        except Refusal as refusal:
            status = refusal.kind.status
            return self._refused(request, refusal)
        finally:
            self._metrics.answered(model, status, time.monotonic() - began)

    # ---- the model of a request ---------------------------------------------------------------------------------

    async def _asked(self, request: web.BaseRequest) -> tuple[str, str, bytes | AsyncIterator[bytes] | None]:
        """Returns model, path and body. Raises Refusal."""
        length = request.content_length
        if length is not None and length > self._config.clients.max_body:
            raise self._too_large()
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(CONTINUE)
            request.writer.output_size = 0
        if request.path.startswith(UPSTREAM):
            model, path = self._upstream(request.raw_path)
            return model, path, self._pieces(request) if request.body_exists else None
        if not request.path.startswith("/v1/"):
            text = f"no such path; a model's own are under {UPSTREAM}MODEL/"
            raise Refusal(refusals.NO_SUCH_PATH, text)
        if not request.body_exists:
            raise Refusal(refusals.NO_MODEL, 'the request has no body with a "model"')
        body = await self._whole(request)
        return self._known(_model_in(body)), request.raw_path, body

    def _upstream(self, raw_path: str) -> tuple[str, str]:
        """Returns the model of `/upstream/MODEL/rest?query`, and `/rest?query` as it came."""
        path, mark, query = raw_path.partition("?")
        name, _, rest = path.removeprefix(UPSTREAM).partition("/")
        return self._known(unquote(name)), f"/{rest}{mark}{query}"

    def _known(self, name: str) -> str:
        found = self._called.get(name)
        if found is None:
            raise Refusal(refusals.UNKNOWN_MODEL, f"there is no model {name[:200]!r}; GET /v1/models lists them")
        return found

    async def _whole(self, request: web.BaseRequest) -> bytes:
        if request.content.is_eof() and request.content_length is not None:  # it is here already, as most are
            return request.content.read_nowait()
        try:
            async with asyncio.timeout(BODY_S):
                return b"".join([piece async for piece in self._pieces(request)])
        except TimeoutError:
            raise Refusal(refusals.SLOW_REQUEST, f"the body was not whole after {BODY_S:g} s") from None

    async def _pieces(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Yields the body as it comes, up to the limit."""
        read = 0
        async for piece in request.content.iter_any():
            read += len(piece)
            if read > self._config.clients.max_body:
                raise self._too_large()
            yield piece

    def _too_large(self) -> Refusal:
        return Refusal(refusals.TOO_LARGE, f"the body is larger than {self._config.clients.max_body} bytes")

    # ---- the answer ---------------------------------------------------------------------------------------------

    async def _answered(
        self, request: web.BaseRequest, model: str, path: str, body: bytes | AsyncIterator[bytes] | None
    ) -> tuple[web.StreamResponse, int]:
        """A server that cannot be reached has seen nothing: it is tried again until the deadline."""
        deadline = asyncio.get_running_loop().time() + self._config.models[model].wait
        while True:
            job = await self._pool.acquire(model, deadline)
            try:
                return await self._proxy.forward(request, model, job.port, path, body)
            except NotReached as error:
                self._pool.suspect()
                if asyncio.get_running_loop().time() > deadline:
                    raise Refusal(refusals.DEADLINE, f"the server of {model} is not reached: {error}") from error
            except Refusal as refusal:
                if refusal.kind is refusals.UPSTREAM_GONE:  # it may be ending
                    self._pool.suspect()
                raise
            finally:
                self._pool.release(model)
            await asyncio.sleep(AGAIN_S)

    def _refused(self, request: web.BaseRequest, refusal: Refusal) -> web.Response:
        kind = refusal.kind
        headers = {"Content-Type": "application/json", **refusal.headers()}
        if kind is refusals.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        answer = web.Response(status=kind.status, headers=headers, body=refusal.body())
        if kind in (refusals.TOO_LARGE, refusals.SLOW_REQUEST):
            answer.force_close()  # the rest of the body is not read
        return answer

    def _check_token(self, request: web.BaseRequest) -> None:
        """All needs the token, if there is one, but `/health` and the page, which has no data in it."""
        token = self._config.token
        if token is None or request.path in ("/", "/health"):
            return
        if not is_shown(token, request.headers.get("authorization", "")):
            raise Refusal(refusals.UNAUTHORIZED, "a bearer token is needed")

    # ---- its own pages ------------------------------------------------------------------------------------------

    def _own_page(self, request: web.BaseRequest) -> Callable[[web.BaseRequest], Awaitable[web.Response]] | None:
        if request.path.startswith(f"{MODELS}/") and request.method in ("GET", "HEAD"):
            return self._one_model
        return self._own.get(request.path)

    async def _health(self, request: web.BaseRequest) -> web.Response:
        return _json({"status": "ok", "models": self._states()})

    async def _metrics_page(self, request: web.BaseRequest) -> web.Response:
        text, kind = self._metrics.text(request.headers.getall("accept", []))
        return web.Response(body=text, headers={"Content-Type": kind})

    async def _page(self, request: web.BaseRequest) -> web.Response:
        body, headers = page()
        return web.Response(body=body, headers=headers)

    async def _status_page(self, request: web.BaseRequest) -> web.Response:
        return _json(await self._status.body())

    def _states(self) -> dict[str, str]:
        return {name: str(each.state) for name, each in self._pool.models.items()}

    async def _models(self, request: web.BaseRequest) -> web.Response:
        states = self._states()
        return _json({"object": "list", "data": [self._row(name, states) for name in self._called]})

    async def _one_model(self, request: web.BaseRequest) -> web.Response:
        """Answers `/v1/models/ID`, where a slash of the ID may come as it is. Raises Refusal."""
        path = request.raw_path.partition("?")[0]
        name = unquote(path.removeprefix(f"{MODELS}/"))
        self._known(name)
        return _json(self._row(name, self._states()))

    def _row(self, name: str, states: Mapping[str, str]) -> dict[str, Any]:
        """Returns a model object of OpenAI's interface, and its state."""
        model = self._called[name]
        return {"id": name, "object": "model", "created": self._created, "owned_by": "gcr", "state": states[model]}


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), content_type="application/json")


def _model_in(body: bytes) -> str:
    """Returns the "model" of a JSON body. Raises Refusal."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(refusals.NOT_JSON, "the body is not JSON") from None
    name = found.get("model") if isinstance(found, dict) else None
    if not isinstance(name, str):
        raise Refusal(refusals.NO_MODEL, 'the body names no "model"')
    return name
