"""Heads of requests: what a node sends is read, anything else is refused and never guessed at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.image.exchange.heads import AnswerHead, Head, answer_head, request_head
from gcr.image.exchange.wire import MOST_WAIT_S, wait_of, waiting

WHOLE = b'GET /1/packs/ab HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9 \r\nIf-Match:\t"x"'


def test_a_head_is_read() -> None:
    head = Head.parsed(WHOLE)
    assert (head.method, head.path, head.size, head.is_last) == ("GET", "/1/packs/ab", 0, False)
    assert head.fields == {"host": "a", "range": "bytes=0-9", "if-match": '"x"'}
    last = Head.parsed(b"POST /1/look HTTP/1.1\r\nContent-Length: 12\r\nConnection: Close")
    assert (last.size, last.is_last) == (12, True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"GET /",
        b"GET / HTTP/1.0",
        b"GET / HTTP/1.1 ",
        b"GET /a b HTTP/1.1",
        b"get / HTTP/1.1",
        b"GET / HTTP/1.1\nHost: a",
        b"GET / HTTP/1.1\r\nHost",
        b"GET / HTTP/1.1\r\nHost : a",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded",
        b"GET / HTTP/1.1\r\nHost: a\x00",
        b"GET / HTTP/1.1\r\nRange: a\r\nrange: b",
        b"POST / HTTP/1.1\r\nContent-Length: -1",
        b"POST / HTTP/1.1\r\nContent-Length: 1e3",
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 30,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_request_of_a_node_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"no head|not told|there twice"):
        Head.parsed(text)


@given(st.binary(max_size=80), st.integers(0, len(WHOLE)))
def test_no_bytes_do_anything_else_than_be_refused(noise: bytes, at: int) -> None:
    for text in (noise, WHOLE[:at] + noise + WHOLE[at:]):
        try:
            head = Head.parsed(text)
        except ValueError:
            continue
        assert all(name == name.lower() and "\r" not in value + name for name, value in head.fields.items())


def test_both_ends_read_each_other() -> None:
    asked = Head.parsed(request_head("/1/packs/ab", "[::1]:7", {"Range": "bytes=0-9"})[:-4])
    assert asked == Head("GET", "/1/packs/ab", {"host": "[::1]:7", "range": "bytes=0-9"}, 0)
    assert Head.parsed(request_head("/1/look", "a", {}, 12)[:-4]).size == 12
    assert [wait_of(waiting(seconds)["Prefer"]) for seconds in (0.5, 1e3)] == [0.5, MOST_WAIT_S]
    assert [wait_of(text) for text in ("", "wait=", "wait=-1", "wait=1e9", "wait=1, wait=2")] == [0.0] * 5
    assert AnswerHead.parsed(answer_head(206, 10)[:-4]) == AnswerHead(206, 10, False)
    assert AnswerHead.parsed(answer_head(401, 0, {"Connection": "close"})[:-4]) == AnswerHead(401, 0, True)


def test_an_answer_has_its_length_and_what_is_asked_for() -> None:
    text = answer_head(401, 0, {"Connection": "close"}).decode()
    first, *rest = text.split("\r\n")
    assert (first, rest[-2:]) == ("HTTP/1.1 401 Unauthorized", ["", ""])
    assert {"Server: gcr", "Content-Length: 0", "Connection: close"} <= {*rest}
