"""Processes that take bytes for a pull: what they bring is compared, and one that ends loses nothing."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from imaging import check, described, mapped, write
from nodes import TOKEN, pulled, running, shares
from one_peer import BODY, HEAD, Answer, peer, says, whole, whole_and_closes
from remotes import COMMON, OWN, contents

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange import giver, takers
from gcr.image.exchange.address import PeerAddress, Trust, server_tls
from gcr.image.exchange.giver import Connections
from gcr.image.exchange.lines import NotSent
from gcr.image.exchange.takers import SLOT, TakerGone, Takers
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged
from gcr.swarm.peer import Limits
from gcr.testing.machine import until

START_S = 20.0


async def started(made: Takers) -> None:
    end = time.monotonic() + START_S
    while not all(taker.ready for taker in made._all):
        assert time.monotonic() < end, "a taker has not started"
        await asyncio.sleep(0.01)


def taking(address: PeerAddress, work: Callable[[Takers], Awaitable[None]], number: int = 1) -> None:
    """Does some work with takers that have started."""

    async def run() -> None:
        made = Takers([address], TOKEN, Trust(), number)
        try:
            await started(made)
            await work(made)
        finally:
            made.close()
        assert all(taker._process.poll() is not None for taker in made._all)

    asyncio.run(run())


async def fetched(made: Takers, address: PeerAddress) -> memoryview:
    slot = made.memory.slot(len(BODY))
    assert slot
    await made.fetch(address, "/packs/1", {}, slot, lambda: None)
    return slot


def stalls(begun: threading.Event) -> Answer:
    """Returns an answer that begins, and goes on no more until the taker has gone."""

    def answer(made: socket.socket) -> bool:
        made.sendall(HEAD % len(BODY) + BODY[:1000])
        begun.set()
        with suppress(ConnectionError):
            made.recv(1)
        return True

    return answer


def test_a_taker_fills_slots_by_one_connection() -> None:
    with peer(whole, whole_and_closes, whole) as (address, asked):

        async def work(made: Takers) -> None:
            for _ in range(3):
                slot = await fetched(made, address)
                assert slot == BODY
                made.memory.free(slot)

        taking(address, work)
    assert asked == [1, 1, 2]


def test_other_answers_are_refused_and_their_slots_are_free_again() -> None:
    busy = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
    with peer(says(HEAD % len(BODY) + BODY[:9]), says(busy), says(busy.replace(b"503", b"401"))) as (address, asked):

        async def work(made: Takers) -> None:
            free = [*made.memory._free]
            for error, text in ((NotSent, "broke off"), (NotSent, "status 503"), (PeerUnusable, "know the token")):
                with pytest.raises(error, match=text):
                    await fetched(made, address)
            assert made.memory._free == free

        taking(address, work)
    assert asked == [1, 2, 3]


def test_a_request_that_is_given_up_ends_at_once_and_its_connection_is_not_used_again() -> None:
    """The slot is free only once the taker writes to it no more."""
    begun = threading.Event()
    with peer(stalls(begun), whole) as (address, asked):

        async def work(made: Takers) -> None:
            free = len(made.memory._free)
            task = asyncio.create_task(fetched(made, address))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() and len(made.memory._free) == free - 1
            end = time.monotonic() + 10
            while len(made.memory._free) < free:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            assert await fetched(made, address) == BODY

        taking(address, work)
    assert asked == [1, 2]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_taker_that_is_killed_leaves_its_request_and_its_slot(wanted: bool) -> None:
    """Nothing gets the slot again, also where the request was given up before."""
    begun = threading.Event()
    with peer(stalls(begun)) as (address, _):

        async def work(made: Takers) -> None:
            free = len(made.memory._free)
            task = asyncio.create_task(fetched(made, address))
            await asyncio.to_thread(begun.wait, 10)
            made._all[0]._process.send_signal(signal.SIGSTOP)
            if not wanted:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            made._all[0]._process.kill()
            with pytest.raises(TakerGone if wanted else asyncio.CancelledError):
                await task
            while made.are_ready:
                await asyncio.sleep(0.01)
            assert len(made.memory._free) == free - 1
            with pytest.raises(TakerGone):
                await fetched(made, address)

        taking(address, work)


def test_takers_end_with_a_pull_that_is_killed() -> None:
    code = """
import asyncio, os, signal
from gcr.image.exchange.address import PeerAddress, Trust
from gcr.image.exchange.takers import Takers
async def run():
    made = Takers([PeerAddress("127.0.0.1", 1, False)], None, Trust(), 2)
    while not all(taker.ready for taker in made._all):
        await asyncio.sleep(0.01)
    print(*(taker._process.pid for taker in made._all), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""
    killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    pids, end = [int(pid) for pid in killed.stdout.split()], time.monotonic() + 10
    assert len(pids) == 2
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- pulls -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[Takers]:
    """Has pulls wait for two takers; returns all that were made."""
    made, expect = list[Takers](), Connections.expect

    def expected(self: Connections, size: int) -> None:
        expect(self, size)
        assert self.takers
        if self.takers not in made:
            made.append(self.takers)
            end = time.monotonic() + START_S
            while not self.takers.are_ready:  # the loop does not run meanwhile
                assert time.monotonic() < end
                for taker in self.takers._all:
                    taker._heard()
                time.sleep(0.01)

    monkeypatch.setattr(giver, "LEAST_TO_TAKE", 0)
    monkeypatch.setattr(giver, "how_many", lambda: 2)
    monkeypatch.setattr(Connections, "expect", expected)
    return made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the sizes of what takers have brought."""
    found, fetch = list[int](), Takers.fetch

    async def fetched(self: Takers, *given: object) -> None:
        await fetch(self, *given)  # type: ignore[arg-type]
        found.append(len(given[3]))  # type: ignore[arg-type]

    monkeypatch.setattr(Takers, "fetch", fetched)
    return found


def test_an_image_comes_by_takers_byte_by_byte(
    store: Store, other: Store, tmp_path: Path, two: list[Takers], taken: list[int]
) -> None:
    """With TLS, one pinned certificate, and no key of the store in a taker."""
    files = certificate(tmp_path)
    write(store, "warm", [COMMON, OWN])
    with running(store.path, tls=server_tls(*files)) as node:
        moved = pulled(other, [node], trust=Trust(pinned=files[0].read_text()))
    assert contents(other.path) == contents(store.path)
    check(other, "warm")
    assert sum(taken) == moved.bytes_moved == shares(moved)[str(node.address)]
    assert len(two[0].memory._free) == 64 and two[0].number == 2


def test_a_node_that_sends_wrong_bytes_to_a_taker_is_asked_no_more(
    store: Store, other: Store, two: list[Takers], taken: list[int]
) -> None:
    write(store, "warm", [COMMON, OWN])
    with (
        running(
            store.path, change=lambda data: data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 8192 else data
        ) as node,
        pytest.raises(Damaged, match="sent wrong bytes"),
    ):
        pulled(other, [node])
    assert taken and not [*(other.path / "packs").glob("*.pack")]


def test_a_pull_goes_on_without_takers_that_are_killed(
    store: Store, other: Store, two: list[Takers], taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    write(store, "warm", [COMMON, OWN])
    sent, killed = 0, threading.Lock()

    def kill(data: bytes) -> bytes:
        nonlocal sent
        sent += len(data)
        if two and sent > 100_000 and killed.acquire(blocking=False):
            for taker in two[0]._all:
                os.kill(taker._process.pid, signal.SIGKILL)
        return data

    with running(store.path, change=kill) as node:
        moved = pulled(other, [node])
    assert contents(other.path) == contents(store.path)
    assert sum(taken) < moved.bytes_moved and "has ended" in caplog.text


def test_takers_are_for_large_images_and_several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Made:
        def __init__(self, *given: object) -> None:
            self.number = int(str(given[3]))
            asked.append(self.number)

        def close(self) -> None:
            pass

    monkeypatch.setattr(giver, "Takers", Made)

    async def numbers(processors: int, *sizes: int) -> tuple[list[int], int]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(processors)))
        asked.clear()
        connections = Connections([], None, Trust())
        for size in sizes:
            connections.expect(size)
        requests = connections.limits(Limits()).requests
        await connections.close()
        return [*asked], requests

    most = giver.LEAST_TO_TAKE
    for processors, sizes, found in (
        (16, (most - 1,), ([], 8)),
        (16, (most // 2, most // 2, most), ([8], 16)),
        (2, (most,), ([], 8)),
        (4, (most,), ([2], 8)),
        (128, (most,), ([8], 16)),
    ):
        assert asyncio.run(numbers(processors, *sizes)) == found


def making(store: Store) -> Iterator[None]:
    """Writes an image, step by step: it goes on with each `next`."""
    with ImageWriter(store, "warm", threads=3) as writer:
        for data in (COMMON, OWN):
            writer.add([(mapped(data), ())])
            writer.send_ahead()
            yield
        writer.commit(described("warm", [len(COMMON), len(OWN)]))
        yield


def are_gone(takers: Takers) -> bool:
    with suppress(FileNotFoundError):
        if "gcr-pieces" in str(Path(f"/proc/self/fd/{takers.memory.fd}").readlink()):
            return False
    return all(taker._process.poll() is not None for taker in takers._all)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_takers_of_a_pull_that_waits_are_ready_before_the_first_byte_and_end_with_it(
    store: Store, other: Store, taken: list[int], is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, init = list[Takers](), Takers.__init__

    def made(self: Takers, *given: Any) -> None:
        init(self, *given)
        found.append(self)

    def go_on() -> None:
        """The last step is the manifest: the loop runs on until all before it has come."""
        if not all(taker.ready for taker in found[0]._all) or len(node.node._door._visits) < 2 * giver.LINES_OF_ONE:
            return
        if not is_wanted:
            raise KeyError
        next(steps, None)

    monkeypatch.setattr(giver, "how_many", lambda: 2)
    monkeypatch.setattr(Takers, "__init__", made)
    steps = making(store)
    with running(store.path) as node, nullcontext() if is_wanted else pytest.raises(KeyError):
        moved = pulled(other, [node], wait_s=0.2, awaiting=go_on)
        assert sum(taken) == moved.bytes_moved
    until(lambda: are_gone(found[0]), 10.0, "the takers have ended, and their memory was given back")
    if is_wanted:
        check(other, "warm")


def test_a_pull_without_room_for_takers_is_done_by_threads(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(giver, "LEAST_TO_TAKE", 0)
    monkeypatch.setattr(giver, "how_many", lambda: 2)
    monkeypatch.setattr(takers, "_started", full)
    write(store, "warm", [COMMON])
    with running(store.path) as node:
        pulled(other, [node])
    assert contents(other.path) == contents(store.path) and "by threads" in caplog.text


def test_takers_of_more_peers_than_can_be_told_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found, start = list["subprocess.Popen[bytes]"](), takers._started

    def started(*given: int) -> "subprocess.Popen[bytes]":
        found.append(start(*given))
        return found[-1]

    async def run() -> None:
        Takers([PeerAddress(f"node{number}", 7443, True) for number in range(20_000)], None, Trust(), 2)

    monkeypatch.setattr(takers, "_started", started)
    with pytest.raises(OSError, match="too long"):
        asyncio.run(run())
    assert [process.poll() for process in found] == [-signal.SIGKILL]


def test_a_piece_that_no_slot_holds_is_not_for_takers() -> None:
    memory = takers.Memory()
    slots = [memory.slot(SLOT) for _ in range(64)]
    assert all(slots) and memory.slot(1) is None
    first = slots[0]
    assert first
    memory.free(first)
    assert memory.slot(SLOT + 1) is None
    again = memory.slot(5)
    assert again and (memory.at(again), len(again)) == (memory.at(first), 5)
    again[:], same = b"bytes", os.dup(memory.fd)
    assert os.fstat(same).st_blocks
    memory.close()
    assert not os.fstat(same).st_blocks
    os.close(same)
