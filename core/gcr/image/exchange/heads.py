"""Heads of requests and answers: so much of HTTP/1.1 as wire.py has, and no more.

A head is one line, lines with a field each, and an empty line. Both ends are gcr's, so this module refuses all else: an
older version, a folded line, a body without its length in the head.
"""

import re
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Self

from msgspec import Struct

MOST_HEAD = 16 << 10  # bytes
END = b"\r\n\r\n"
_REQUEST = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.1\Z")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\Z")
_ANSWER = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [ -~]*\Z")
_SIZE = re.compile(r"[0-9]{1,18}\Z")
_HEADERS = {"Server": "gcr", "Content-Type": "application/octet-stream"}


class Head(Struct, frozen=True):
    """The head of a request. `fields`: by name in lower case · `size`: bytes of the body that follows"""

    method: str
    path: str
    fields: Mapping[str, str]
    size: int

    @classmethod
    def parsed(cls, text: bytes) -> Self:
        """Reads a head without its empty line. Raises ValueError for what is no request of a node."""
        begin, fields = _read(text, _REQUEST)
        size = fields.get("content-length", "0")
        if "transfer-encoding" in fields or not _SIZE.match(size):
            raise ValueError("a body whose length is not told")
        return cls(begin[1].decode(), begin[2].decode(), fields, int(size))

    @property
    def is_last(self) -> bool:
        """Returns whether the connection is to end after the answer."""
        return self.fields.get("connection", "").lower() == "close"


class AnswerHead(Struct, frozen=True):
    """The head of an answer. `size`: bytes of the body, None where it is not told · `is_last`: the connection ends"""

    status: int
    size: int | None
    is_last: bool

    @classmethod
    def parsed(cls, text: bytes) -> Self:
        """Reads a head without its empty line. Raises ValueError for what is no answer of a node."""
        begin, fields = _read(text, _ANSWER)
        size = fields.get("content-length", "")
        told = "transfer-encoding" not in fields and _SIZE.match(size)
        return cls(int(begin[1]), int(size) if told else None, fields.get("connection", "").lower() == "close")


def _read(text: bytes, first: re.Pattern[bytes]) -> tuple[re.Match[bytes], Mapping[str, str]]:
    """Returns the first line, and the fields by name. Raises ValueError for what is no such head."""
    line, *rest = text.split(b"\r\n")
    begin, found = first.match(line), [_FIELD.match(line) for line in rest]
    if not begin or not all(found):
        raise ValueError(f"this is no head: {text[:80]!r}")
    pairs = [(each[1].decode().lower(), each[2].decode("latin-1")) for each in found if each]
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field that is there twice")
    return begin, fields


def request_head(path: str, host: str, more: Mapping[str, str], body: int | None = None) -> bytes:
    """Returns the head of a request; with a body of so many bytes it is a POST."""
    sized = {} if body is None else {"Content-Length": str(body)}
    return _written(f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", {"Host": host, **sized, **more})


def answer_head(status: int, size: int, more: Mapping[str, str] | None = None) -> bytes:
    """Returns the head of an answer with a body of `size` bytes."""
    fields = {**_HEADERS, "Date": formatdate(usegmt=True), "Content-Length": str(size), **(more or {})}
    return _written(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", fields)


def _written(first: str, fields: Mapping[str, str]) -> bytes:
    return "\r\n".join((first, *(f"{name}: {text}" for name, text in fields.items()))).encode("latin-1") + END
