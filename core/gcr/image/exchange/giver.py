"""The places that pieces come from: exchanges of other nodes, and the store elsewhere as the last resort."""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.lines import Lines, NotSent, threads
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, MOST_TOLD, PACKS, Look, Told, ToldPack, packed, parsed, waiting
from gcr.image.pack.format import Pack
from gcr.image.remote.remote import Remote, pack_path
from gcr.imageerrors import Damaged, StoreUnusable


class Giver(Protocol):
    """A place that pieces come from. Its methods raise NotSent."""

    name: str
    last: bool  # the last resort

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told: ...

    async def bring(self, pack: Pack, at: int, memory: memoryview, moved: Callable[[], object]) -> memoryview:
        """Returns as many bytes of a pack as the memory has, which may be used for them.

        Calls `moved` as they come. Once it has raised, a thread may still write to the memory.
        """


class Node:
    """The exchange of another node."""

    last = False

    def __init__(self, address: PeerAddress, lines: Lines) -> None:
        self.name, self._lines = str(address), lines

    async def mark(self) -> bytes:
        """Returns the mark of its store, b"" if it has no store. Raises NotSent, PeerUnusable."""
        return await self._lines.whole(MARK, 4096) or b""

    async def small(self, name: str, most: int, wait_s: float = 0.0) -> bytes | None:
        """Returns a small file of an image, None if there is none after `wait_s` seconds.

        Raises NotSent, PeerUnusable.
        """
        return await self._lines.whole(f"{IMAGES}{name}", most, headers=waiting(wait_s) if wait_s else {})

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told:
        found = await self._lines.whole(LOOK, MOST_TOLD, packed(look))
        try:
            return parsed(found or b"", Told)
        except ValueError as error:
            raise NotSent(f"it answers with something else: {error}") from error

    async def bring(self, pack: Pack, at: int, memory: memoryview, moved: Callable[[], object]) -> memoryview:
        headers = {"Range": f"bytes={at}-{at + len(memory) - 1}", "If-Match": f'"{pack.seal.hex()}"'}
        await self._lines.read(f"{PACKS}{pack.id}", headers, memory, moved)
        return memory


class Bucket:
    """The store elsewhere: it is asked for pieces that no node has, and once for each pack whether that is there."""

    last = True

    def __init__(self, remote: Remote) -> None:
        self.name, self._remote = remote.url, remote
        self._there: dict[str, bool] = {}

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told:
        with _answered():
            for id in look.packs:
                if id not in self._there:
                    self._there[id] = await asyncio.to_thread(self._has, packs[id])
        return Told({id: ToldPack(whole=True) for id in look.packs if self._there[id]})

    async def bring(self, pack: Pack, at: int, memory: memoryview, moved: Callable[[], object]) -> memoryview:
        with _answered():
            try:
                return await asyncio.to_thread(self._remote.part, pack_path(pack), at, len(memory))
            except BaseException:
                self._there.pop(pack.id, None)
                raise

    def _has(self, pack: Pack) -> bool:
        size = self._remote.size(pack_path(pack))
        return size == pack.bytes and self._remote.footer(pack, size).is_sealed(pack.seal)


@contextmanager
def _answered() -> Iterator[None]:
    """Raises NotSent for the errors of a store elsewhere."""
    try:
        yield
    except (StoreUnusable, Damaged) as error:
        raise NotSent(error.message) from error


class Connections:
    """The connections to all peers of a pull, and the `nodes` at their ends. Closed within its event loop."""

    def __init__(self, addresses: Sequence[PeerAddress], token: str | None, tls: ssl.SSLContext) -> None:
        self._threads = threads()
        self._lines = [Lines(address, token, tls, self._threads) for address in addresses]
        self.nodes = [Node(at, lines) for at, lines in zip(addresses, self._lines, strict=True)]

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._lines))
        self._threads.shutdown()
