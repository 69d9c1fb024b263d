"""The short way of a request: heads and answers held against h11, and servers and clients that behave badly."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import h11
import pytest
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from serving import Client, FakeJobs, config_of, front

from gcr.serve.lane import Head, Lane
from gcr.serve.link import Link, Links

TOKENS = st.text("abcXYZ09-_!", min_size=1, max_size=12).map(str.encode)
VALUES = st.text(" abc,;=\"'~\t{}", max_size=20).map(lambda text: text.strip().encode())
NAMES = st.one_of(TOKENS, st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"Host"]))
SMALL_NUMBERS = st.integers(0, 99).map(lambda number: b"%d" % number)
VALUE_OF_NAME = {
    b"Content-Length": st.one_of(SMALL_NUMBERS, st.sampled_from([b"5, 5", b"+5", b"", b"0x5", b"-1", b"5 5"])),
    b"Transfer-Encoding": st.sampled_from([b"chunked", b"gzip", b"identity"]),
    b"Connection": st.sampled_from([b"close", b"Keep-Alive", b"X-Hop", b"keep-alive, X-Hop", b"Upgrade"]),
}
HEADERS = st.lists(NAMES.flatmap(lambda name: st.tuples(st.just(name), VALUE_OF_NAME.get(name, VALUES))), max_size=5)
LINE_ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r\n "])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"CONNECT", b"get", b"G T"]))
    target = draw(st.sampled_from([b"/", b"/v1/x?q=1", b"/a b", b"http://x/v1/", b"*", b"/a#b", b"/\xc3"]))
    version = draw(st.sampled_from([b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "]))
    end = draw(LINE_ENDS)
    lines = [b"%b: %b" % each for each in [(b"Host", b"x"), *draw(HEADERS)]]
    return b"%b %b %b" % (method, target, version) + end + end.join(lines) + b"\r\n\r\n"


def by_h11(raw: bytes) -> h11.Request | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


@settings(max_examples=200)
@given(heads())
@example(b"GET / HTTP/1.1\r\nHost: x\r\nHost: \r\n\r\n")
def test_a_plain_head_is_what_a_reference_parser_says(raw):
    """One that is taken is no head that h11 refuses, and both see the same length: no smuggled request."""
    lane = Lane.__new__(Lane)
    lane._token, lane.config = None, CONFIG
    head = lane.head(raw)
    if head is None:
        return
    known = by_h11(raw)
    assert known is not None, raw
    headers = list(known.headers)
    assert (head.method, head.target) == (known.method, known.target)
    assert head.length == next((int(value) for name, value in headers if name == b"content-length"), None)
    assert not {b"transfer-encoding", b"expect", b"upgrade"} & {name for name, _ in headers}
    passed = [(name, value) for name, value in headers if name not in (b"host", b"content-length", b"connection")]
    assert [tuple(line[:-2].split(b": ", 1)) for line in head.lines] == [
        (raw_name, value) for raw_name, value in known.headers.raw_items() if (raw_name.lower(), value) in passed
    ]


class _Limits:
    class clients:
        max_body = 1 << 20


CONFIG = _Limits()


def test_a_plain_head_is_taken():
    head = Head(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\nX-A: 1\r\n\r\n")
    assert (head.length, head.keeps, head.lines) == (3, False, [b"X-A: 1\r\n"])


# ---- answers --------------------------------------------------------------------------------------------------------


class Heard:
    """What a link says of an answer, and its client gets."""

    def __init__(self, head_only: bool = False) -> None:
        self.head_only, self.bytes, self.said = head_only, b"", ""

    def begun(self, status: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.bytes += data

    def ended(self) -> None:
        self.said += "ended"

    def broken(self) -> None:
        self.said += "broken"


class Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


def heard(pieces: list[bytes], head_only: bool = False, end: bool = False) -> tuple[Heard, Wire]:
    async def run() -> tuple[Heard, Wire]:
        link, wire, asker = Link(Links(), "a", 1), Wire(), Heard(head_only)
        link.connection_made(wire)  # type: ignore[arg-type]
        link.ask(asker, b"")
        for piece in pieces:
            link.data_received(piece)
        if end:
            link.connection_lost(None)
        return asker, wire

    return asyncio.run(run())


def read_by_h11(method: str, raw: bytes) -> tuple[int, bytes]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    status, body = 0, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            assert isinstance(event, h11.InformationalResponse), event
    assert connection.trailing_data == (b"", False)
    return status, body


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, int, bytes, bytes, bool]:
    """Returns method, status, body, the bytes of an answer, and whether its end is the connection's."""
    method = draw(st.sampled_from(["GET", "HEAD"]))
    status = draw(st.sampled_from([200, 204, 304, 404, 500]))
    body = b"" if method == "HEAD" or status in (204, 304) else draw(st.binary(max_size=60))
    raw = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"]))
    framing = draw(st.sampled_from(["length", "chunked", "end"]))
    raw += b"HTTP/1.1 %d Word\r\nX-A: 1\r\n" % status
    if framing == "length" or status in (204, 304):
        told = b"" if status == 204 else b"Content-Length: %d\r\n" % (9 if method == "HEAD" else len(body))
        return method, status, body, raw + told + b"\r\n" + body, False
    if framing == "chunked":
        cut = draw(st.integers(0, len(body)))
        chunks = b"".join(b"%x;e=1\r\n%b\r\n" % (len(each), each) for each in (body[:cut], body[cut:]) if each)
        raw += b"Transfer-Encoding: chunked\r\n\r\n"
        return method, status, body, raw + (chunks + b"0\r\nTrailer: t\r\n\r\n") * (method == "GET"), False
    return method, status, body, raw + b"\r\n" + body, method == "GET"


@settings(max_examples=200)
@given(answers(), st.lists(st.integers(0, 200), max_size=6))
def test_an_answer_reaches_the_client_as_it_was_however_it_is_cut(answer, cuts):
    method, status, body, raw, until_end = answer
    places = sorted({min(each, len(raw)) for each in cuts} | {0, len(raw)})
    pieces = [raw[a:b] for a, b in pairwise(places)]
    asker, wire = heard(pieces, method == "HEAD", end=until_end)
    assert asker.said == "ended"
    assert read_by_h11(method, asker.bytes) == (status, body)
    assert wire.closed or not until_end


@pytest.mark.parametrize(
    "raw",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n123",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"",
    ],
)
def test_an_answer_that_is_none_or_breaks_off(raw):
    asker, _ = heard([raw] if raw else [], end=True)
    assert asker.said == "broken"


@pytest.mark.parametrize("more", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny"])
def test_what_a_server_sends_after_its_answer_reaches_no_client(more):
    asker, wire = heard([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + more])
    assert (asker.said, asker.bytes[-2:], wire.closed) == ("ended", b"ok", True)


def test_a_connection_that_the_server_closes_is_not_used_again():
    wire = heard([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"])[1]
    assert wire.closed


# ---- with a front ---------------------------------------------------------------------------------------------------

Test = Callable[[Client, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def on_wire(tmp_path, test: Test) -> None:
    async def run() -> None:
        async with front(config_of(tmp_path), FakeJobs()) as client, _connected(client) as (reader, writer):
            await test(client, reader, writer)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(run(), 60))


@contextlib.asynccontextmanager
async def _connected(client: Client) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = client.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def post(body: object, more: str = "") -> bytes:
    text = json.dumps(body)
    return f"POST /v1/x HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(text)}\r\n\r\n{text}".encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


def test_requests_that_come_together_are_answered_in_turn(tmp_path):
    async def test(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prompts = [str(number) for number in range(20)]
        writer.write(b"".join(post({"model": "a", "prompt": each}) for each in prompts))
        found = [json.loads((await read_answer(reader))[1])["prompt"] for _ in prompts]
        assert found == prompts
        writer.write(post({"model": "a"}, "Connection: close\r\n"))
        head, _ = await read_answer(reader)
        assert (b"Connection: close" in head, await reader.read()) == (True, b"")

    on_wire(tmp_path, test)


def test_a_request_that_comes_byte_by_byte(tmp_path):
    async def test(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in post({"model": "a", "prompt": "slow"}):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert json.loads((await read_answer(reader))[1])["prompt"] == "slow"
        assert client.server.pool.models["a"].track.uses == 1

    on_wire(tmp_path, test)


def test_head_goes_the_short_way_and_the_connection_lives(tmp_path):
    async def test(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(b"HEAD /upstream/a/x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(post({"model": "a", "prompt": "after"}))
        assert json.loads((await read_answer(reader))[1])["prompt"] == "after"

    on_wire(tmp_path, test)


def test_one_request_that_is_not_plain_and_then_plain_ones(tmp_path):
    """The connection stays with aiohttp, and nothing is lost between the two."""

    async def test(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunked = b"Transfer-Encoding: chunked\r\n\r\n" + b'e\r\n{"model": "a"}\r\n0\r\n\r\n'
        plain = post({"model": "a", "prompt": "p"})
        writer.write(plain + b"POST /v1/x HTTP/1.1\r\nHost: x\r\n" + chunked + plain)
        found = [json.loads((await read_answer(reader))[1])["prompt"] for _ in range(3)]
        assert found == ["p", None, "p"]

    on_wire(tmp_path, test)


def test_a_client_that_reads_slowly_slows_the_server(tmp_path):
    async def test(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(post({"model": "a", "pieces": 2000, "size": 1 << 16}))
        await reader.readuntil(b"\r\n\r\n")
        (edge,) = client.server.clients.open
        await client.until(lambda: edge._paused, "the client is full")
        assert edge.transport.get_write_buffer_size() < 4 << 20
        seen = 0
        async with asyncio.timeout(30):
            while seen < 1 << 20:
                seen += len(await reader.read(1 << 16))
        writer.close()
        await client.until(lambda: client.server.pool.models["a"].active == 0, "it is dropped by the server too")

    on_wire(tmp_path, test)
