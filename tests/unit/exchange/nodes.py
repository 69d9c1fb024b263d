"""Nodes of an exchange for tests: a store and its server, in threads of this process, on the loopback address."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from ssl import SSLContext

from gcr.image.crypto.cipher import Cipher
from gcr.image.exchange.address import PeerAddress, Trust
from gcr.image.exchange.door import Visit
from gcr.image.exchange.pulling import MovedFromPeers, Peers, pull_from_peers
from gcr.image.exchange.server import Exchange, Listening
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.listening import listening
from gcr.swarm.peer import Limits

TOKEN = "a token that both know"
SYSTEM = Trust()  # one for all: to read the authorities of the system takes 20 ms
QUICK = Limits(stuck=3.0, rest=0.1, most_rest=0.5)

Sent = Callable[[bytes], bytes]


class Node(Exchange):
    """An exchange whose answers a test may change, hold or break off."""

    change: Sent = staticmethod(lambda data: data)
    pause = 0.0  # seconds before each part of an answer

    def send(self, visit: Visit, data: memoryview) -> None:
        changed = self.change(bytes(data))
        if self._ending.wait(60 if changed == b"stall" else self.pause):
            raise ConnectionResetError("the node ends")
        super().send(visit, memoryview(changed))


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
        node, once = Node(store, Listening(sock, tls, token)), threading.Lock()
        node.pause = pause
        if change:
            node.change = change  # type: ignore[method-assign]
        stack = ExitStack()
        stack.enter_context(node)

        def end() -> None:
            with once:
                stack.close()
                sock.close()

        try:
            yield Running(node, address, end)
        finally:
            end()


@cache
def of_the_system() -> SSLContext:
    """Returns TLS as of a pull without --tls-ca."""
    return SYSTEM.context


def pulled(
    store: Store,
    nodes: Sequence[Running | PeerAddress],
    name: str = "warm",
    url: str | None = None,
    token: str = TOKEN,
    limits: Limits = QUICK,
    trust: Trust = SYSTEM,
    timeout: float | None = 60.0,
    wait_s: float = 0.0,
    awaiting: Callable[[], object] | None = None,
    before: Sequence[str] = (),
) -> MovedFromPeers:
    addresses = [node if isinstance(node, PeerAddress) else node.address for node in nodes]
    peers = Peers(addresses, token, trust, limits, wait_s)
    return pull_from_peers(store.path, name, peers, url, Transfer("pull", timeout), store.cipher, awaiting, before)


def shares(moved: MovedFromPeers) -> Mapping[str, int]:
    return {share.peer: share.bytes for share in moved.peers}


def stores(folder: Path, count: int, cipher: Cipher) -> list[Store]:
    return [Store(folder / f"store{number}", cipher) for number in range(count)]
