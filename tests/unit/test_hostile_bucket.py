"""A bucket with a hostile server: each answer is a typed error, in bounded time and memory."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest

pytest.importorskip("obstore")

from gcr.errors import GcrError
from gcr.image.remote.remote import Remote
from gcr.imageerrors import Damaged, StoreUnusable

SIZE = 1 << 16
TIB = 1 << 40
MOST = 1 << 20
PATIENCE = 20.0
DATE = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"
PART = f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}"
GONE = "<Error><Code>NoSuchKey</Code></Error>"
NEXT = "<NextContinuationToken>t</NextContinuationToken><KeyCount>0</KeyCount>"
EMPTY_PAGE = f"<ListBucketResult><IsTruncated>true</IsTruncated>{NEXT}</ListBucketResult>"

Answer = Callable[[socket.socket, str], object]


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", DATE, 'ETag: "e"', *lines, "", "")).encode()


def whole(status: str, body: str, *lines: str) -> bytes:
    return head(status, f"Content-Length: {len(body)}", *lines) + body.encode()


class Server:
    """Answers each request by `answer`, which also hears the request's first line. `asked` keeps those lines."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _line, _request: None
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                Thread(target=self._converse, args=(line,), daemon=True).start()

    def _converse(self, line: socket.socket) -> None:
        with suppress(OSError), line, line.makefile("rb") as requests:
            while request := requests.readline().decode():
                while requests.readline().strip():
                    pass
                self.asked.append(request)
                if self.answer(line, request) is False:
                    return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    known = {
        "AWS_ENDPOINT": made.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def remote(server: Server) -> Remote:
    return Remote("s3://bucket/prefix")


def says(*parts: bytes, on: bool = True) -> Answer:
    """Sends these; not `on`: and closes the connection."""

    def answer(line: socket.socket, _request: str) -> object:
        for part in parts:
            line.sendall(part)
        return on

    return answer


def endless(first: bytes, again: bytes, pause: float = 0.0) -> Answer:
    def answer(line: socket.socket, _request: str) -> object:
        line.sendall(first)
        while True:
            line.sendall(again)
            time.sleep(pause)

    return answer


BODY = b"x" * SIZE
ANSWERS: dict[str, Answer] = {
    "closes at once": says(on=False),
    "says no HTTP": says(bytes(100), on=False),
    "fails": says(whole("500 Internal Server Error", "")),
    "stops half way": says(head("206 Partial Content", PART, f"Content-Length: {SIZE}"), b"x" * 100, on=False),
    "another range": says(head("206 Partial Content", "Content-Range: bytes 5-9/99", "Content-Length: 5"), b"xxxxx"),
    "all instead of a part": endless(head("200 OK", f"Content-Length: {TIB}"), BODY),
    "no length": endless(head("206 Partial Content", PART, "Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
    "endless headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: " + BODY + b"\r\n"),
    "slow headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.1),
    "slow bytes": endless(head("206 Partial Content", PART, f"Content-Length: {SIZE}"), b"x", 0.1),
    "promises for ever": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "says nothing": endless(b"", b"", 0.1),
    "a file of ours": says(whole("302 Found", "", "Location: file:///etc/passwd")),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_what_is_no_part_of_an_object_is_refused(
    server: Server, remote: Remote, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "250ms")  # 30 s without it
    server.answer = answer
    began = time.monotonic()
    with pytest.raises(StoreUnusable):
        remote.part("packs/one.pack", 0, SIZE)
    assert time.monotonic() - began < PATIENCE


def test_a_circle_of_addresses_is_left(server: Server, remote: Remote) -> None:
    server.answer = lambda line, _: line.sendall(whole("302 Found", "", f"Location: {server.url}/bucket/again"))
    with pytest.raises(StoreUnusable):
        remote.part("packs/one.pack", 0, SIZE)
    assert len(server.asked) < 50


def test_a_part_that_goes_on_is_read_no_further_and_no_room_is_made_for_it(server: Server, remote: Remote) -> None:
    server.answer = endless(head("206 Partial Content", PART, f"Content-Length: {TIB}"), BODY)
    assert bytes(remote.part("packs/one.pack", 0, SIZE)) == BODY


def test_a_part_that_is_shorter_is_damage(server: Server, remote: Remote) -> None:
    server.answer = says(whole("206 Partial Content", "x" * 100, PART))
    with pytest.raises(Damaged):
        remote.part("packs/one.pack", 0, SIZE)


@pytest.mark.parametrize("length", [MOST + 1, TIB, (1 << 64) - 1])
def test_what_is_read_whole_has_a_bound(server: Server, remote: Remote, length: int) -> None:
    server.answer = endless(head("200 OK", f"Content-Length: {length}"), BODY)
    with pytest.raises(GcrError) as refused:
        remote.read("images/warm.json", MOST)
    assert isinstance(refused.value, Damaged | StoreUnusable)


@pytest.mark.parametrize("said", ["", GONE])
def test_an_object_that_is_not_there_is_none(server: Server, remote: Remote, said: str) -> None:
    server.answer = says(whole("404 Not Found", said))
    assert remote.read("images/warm.json", MOST) is None


@pytest.mark.parametrize("said", ["<Error><Code>NoSuchBucket</Code></Error>", "<html>nginx</html>", "no such\n\nhost"])
def test_a_server_without_the_bucket_is_no_store_and_is_not_asked_for_its_pages(
    server: Server, remote: Remote, said: str
) -> None:
    pages, nothing = whole("200 OK", EMPTY_PAGE), whole("404 Not Found", said)
    server.answer = lambda line, request: line.sendall(pages if "list-type" in request else nothing)
    with pytest.raises(StoreUnusable):
        remote.read("images/warm.json", MOST)
    assert len(server.asked) == 1


def test_no_manifest_leads_out_of_the_store(server: Server, remote: Remote) -> None:
    with pytest.raises(GcrError):
        remote.manifest("../../etc/passwd")
    assert server.asked == []
