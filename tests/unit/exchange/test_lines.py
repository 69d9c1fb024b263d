"""Connections for the bytes of packs: a request has a deadline, can be given up, and finds a connection that lives."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from nodes import of_the_system
from one_peer import BODY, HEAD, Answer, peer, says, whole, whole_and_closes

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange import lines
from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.lines import Lines, NotSent


def read(address: PeerAddress, times: int = 1, pause: float = 0.0) -> list[bytearray]:
    async def ask() -> list[bytearray]:
        with ThreadPoolExecutor(4) as pool:
            made = Lines(address, "token", of_the_system(), pool)
            try:
                found = []
                for _ in range(times):
                    found.append(bytearray(len(BODY)))
                    await made.read("/packs/1", {}, memoryview(found[-1]), lambda: None)
                    await asyncio.sleep(pause)
                return found
            finally:
                await made.close()

    return asyncio.run(ask())


def test_a_connection_serves_one_request_after_the_other() -> None:
    with peer(whole, whole, whole) as (address, asked):
        assert read(address, 3) == [BODY] * 3
        assert asked == [1, 1, 1]


def test_a_connection_that_the_peer_closed_while_it_rested_is_made_again() -> None:
    with peer(whole_and_closes, whole) as (address, asked):
        assert read(address, 2, pause=0.2) == [BODY] * 2
        assert asked == [1, 2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says(HEAD % len(BODY) + BODY[:1000]), NotSent("it broke off")),
        (says(HEAD % 5 + b"12345"), NotSent("it answers with 5 bytes")),
        (says(b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), NotSent("answers with None bytes")),
        (says(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"), NotSent("status 503")),
        (says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"), NotSent("status 302")),
        (says(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"), PeerUnusable("does not know the token")),
        (says(b"\x00\xff rubbish\r\n\r\n"), NotSent("rubbish")),
        (says(b""), NotSent("closed")),
    ],
)
def test_other_answers_are_refused(answer: Answer, error: Exception) -> None:
    with peer(answer) as (address, _), pytest.raises(type(error), match=str(error)):
        read(address)


def test_a_peer_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "STALLED_S", 0.2)
    given_up = threading.Event()
    with peer(lambda made: made.sendall(HEAD % len(BODY)) or given_up.wait(20)) as (address, _):
        with pytest.raises(NotSent, match="timed out"):
            read(address)
        given_up.set()


def test_nothing_listens_there() -> None:
    with peer() as (address, _):
        pass
    with pytest.raises(NotSent, match="refused"):
        read(address)


def test_a_request_that_is_given_up_ends_at_once() -> None:
    """Its thread as well: the pool is empty soon, though the peer sends nothing more."""

    async def ask(address: PeerAddress, begun: threading.Event) -> None:
        with ThreadPoolExecutor(1) as pool:
            made = Lines(address, None, of_the_system(), pool)
            work = asyncio.create_task(made.read("/packs/1", {}, memoryview(bytearray(len(BODY))), lambda: None))
            await asyncio.to_thread(begun.wait, 10)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await made.close()

    begun, over = threading.Event(), threading.Event()
    with peer(lambda made: (made.sendall(HEAD % len(BODY)), begun.set(), over.wait(30))) as (address, _):
        began = time.monotonic()
        asyncio.run(ask(address, begun))
        assert time.monotonic() - began < lines.STALLED_S / 2
        over.set()


def test_a_request_that_is_given_up_as_its_answer_comes_leaves_no_connection_behind() -> None:
    """The thread has the answer, and the caller was cancelled before it heard."""

    async def ask(address: PeerAddress) -> bytes:
        with ThreadPoolExecutor(4) as pool:
            some = Lines(address, None, of_the_system(), pool)
            task = asyncio.create_task(some.read("/", {}, memoryview(bytearray(len(BODY))), lambda: None))
            await asyncio.sleep(0)
            time.sleep(0.3)  # the answer comes meanwhile, and the loop does not see it
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            into = bytearray(len(BODY))
            await some.read("/", {}, memoryview(into), lambda: None)
            await some.close()
            return bytes(into)

    with peer(whole, whole, whole) as (address, asked):
        assert asyncio.run(ask(address)) == BODY
    assert asked == [1, 2]
