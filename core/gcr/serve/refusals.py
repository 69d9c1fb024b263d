"""Refusals of a request: the status, a code to branch on, and when to come again. docs/serve.md lists them."""

import json
import math
from http import HTTPStatus

from msgspec import Struct


class Kind(Struct, frozen=True):
    """A kind of refusal, `code` in the body. `retry`: coming again may help."""

    code: str
    status: int
    retry: bool = False


NOT_JSON = Kind("not_json", 400)
NO_MODEL = Kind("no_model", 400)
UNAUTHORIZED = Kind("unauthorized", 401)
NO_SUCH_PATH = Kind("no_such_path", 404)
UNKNOWN_MODEL = Kind("unknown_model", 404)
SLOW_REQUEST = Kind("slow_request", 408)
TOO_LARGE = Kind("too_large", 413)
HEAD_TOO_LARGE = Kind("head_too_large", 431)
UPSTREAM_GONE = Kind("upstream_gone", 502)
QUEUE_FULL = Kind("queue_full", 503, retry=True)
DEADLINE = Kind("deadline", 503, retry=True)
NO_ROOM = Kind("no_room", 503, retry=True)
MODEL_FAILED = Kind("model_failed", 503, retry=True)
TOO_MANY_CONNECTIONS = Kind("too_many_connections", 503, retry=True)
SHUTTING_DOWN = Kind("shutting_down", 503, retry=True)

ALL = (
    NOT_JSON,
    NO_MODEL,
    UNAUTHORIZED,
    NO_SUCH_PATH,
    UNKNOWN_MODEL,
    SLOW_REQUEST,
    TOO_LARGE,
    HEAD_TOO_LARGE,
    UPSTREAM_GONE,
    QUEUE_FULL,
    DEADLINE,
    NO_ROOM,
    MODEL_FAILED,
    TOO_MANY_CONNECTIONS,
    SHUTTING_DOWN,
)


class Refusal(Exception):
    """A request that is not answered by its model. `after`: seconds until it may be asked again."""

    def __init__(self, kind: Kind, message: str, after: float = 1.0) -> None:
        super().__init__(message)
        self.kind, self.message, self.after = kind, message, after

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.after)))} if self.kind.retry else {}

    def body(self) -> bytes:
        """Returns JSON in the shape of OpenAI's errors."""
        error = {"message": self.message, "type": "gcr_serve", "code": self.kind.code}
        return json.dumps({"error": error}).encode()

    def answer(self, *, keeps: bool) -> bytes:
        """Returns a whole HTTP answer. `keeps`: the connection goes on after it."""
        body, status = self.body(), HTTPStatus(self.kind.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **self.headers()}
        if not keeps:
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "\r\n"]).encode() + body
