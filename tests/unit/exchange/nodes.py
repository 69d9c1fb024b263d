"""Nodes of an exchange for tests: a store and its server, in a thread of this process, on the loopback address."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from ssl import SSLContext

from aiohttp import web

from gcr.image.crypto.cipher import Cipher
from gcr.image.exchange.address import PeerAddress, client_tls
from gcr.image.exchange.loop import new_loop
from gcr.image.exchange.pulling import MovedFromPeers, Peers, pull_from_peers
from gcr.image.exchange.server import Exchange, Listening
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.listening import listening
from gcr.swarm.peer import Limits

TOKEN = "a token that both know"
QUICK = Limits(stuck=3.0, rest=0.1, most_rest=0.5)

Sent = Callable[[bytes], bytes]


class Node(Exchange):
    """An exchange whose answers a test may change, hold or break off."""

    change: Sent = staticmethod(lambda data: data)
    pause = 0.0  # seconds before each part of an answer

    async def send(self, answer: web.StreamResponse, data: bytes) -> None:
        changed = self.change(data)
        if changed == b"stall":
            await asyncio.sleep(60)
        await asyncio.sleep(self.pause)
        await super().send(answer, changed)


class Running:
    """A node that runs. `sent`: bytes of packs."""

    def __init__(self, node: Node, address: PeerAddress, ended: Callable[[], None]) -> None:
        self.node, self.address, self._end = node, address, ended
        self.ended = threading.Event()

    @property
    def sent(self) -> int:
        return self.node.sent

    def end(self) -> None:
        self._end()
        self.ended.set()


@contextmanager
def running(
    store: Path,
    tls: SSLContext | None = None,
    change: Sent | None = None,
    port: int = 0,
    token: str = TOKEN,
    pause: float = 0.0,
) -> Iterator[Running]:
    """Runs a node within the block, or until its `end`."""
    with listening("127.0.0.1", port, "") as sock:
        address = PeerAddress("127.0.0.1", sock.getsockname()[1], tls is not None)
        begun, made = threading.Event(), list[Node]()
        loop, ending = new_loop(), asyncio.Event()

        async def serve() -> None:
            node = Node(store, Listening(sock, tls, token))
            if change:
                node.change = change  # type: ignore[method-assign]
            node.pause = pause
            made.append(node)
            async with node:
                begun.set()
                await ending.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        assert begun.wait(10)

        def end() -> None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(ending.set)
            thread.join()
            sock.close()

        try:
            yield Running(made[0], address, end)
        finally:
            end()
            loop.close()


@cache
def of_the_system() -> SSLContext:
    """Returns client_tls(None), made once: to read the authorities of the system takes 20 ms."""
    return client_tls(None)


def pulled(
    store: Store,
    nodes: Sequence[Running | PeerAddress],
    name: str = "warm",
    url: str | None = None,
    token: str = TOKEN,
    limits: Limits = QUICK,
    tls: SSLContext | None = None,
    timeout: float | None = 60.0,
) -> MovedFromPeers:
    addresses = [node if isinstance(node, PeerAddress) else node.address for node in nodes]
    peers = Peers(addresses, token, tls or of_the_system(), limits)
    return pull_from_peers(store.path, name, peers, url, Transfer("pull", timeout), store.cipher)


def shares(moved: MovedFromPeers) -> Mapping[str, int]:
    return {share.peer: share.bytes for share in moved.peers}


def stores(folder: Path, count: int, cipher: Cipher) -> list[Store]:
    return [Store(folder / f"store{number}", cipher) for number in range(count)]
