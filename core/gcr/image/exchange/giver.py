"""The places that pieces come from: exchanges of other nodes, and the store elsewhere as the last resort."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import aiohttp

from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.lines import CONNECT_S, STALLED_S, Lines, NotSent, refuse_status, threads, untrusted
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, MOST_TOLD, PACKS, Look, Told, ToldPack, packed, parsed
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
    """The exchange of another node: `session` for small answers, `lines` for the bytes of packs."""

    last = False

    def __init__(self, address: PeerAddress, session: aiohttp.ClientSession, lines: Lines) -> None:
        self.name = str(address)
        self._base, self._session, self._lines = address.base, session, lines

    async def mark(self) -> bytes:
        """Returns the mark of its store, b"" if it has no store. Raises NotSent, PeerUnusable."""
        return await self._whole(MARK, 4096) or b""

    async def small(self, name: str, most: int) -> bytes | None:
        """Returns a small file of an image, None if there is none. Raises NotSent, PeerUnusable."""
        return await self._whole(f"{IMAGES}{name}", most)

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told:
        async with _sent(self.name), self._session.post(f"{self._base}{LOOK}", data=packed(look)) as answer:
            refuse_status(self.name, answer.status)
            try:
                return parsed(bytes(await _read(answer, MOST_TOLD)), Told)
            except ValueError as error:
                raise NotSent(f"it answers with something else: {error}") from error

    async def bring(self, pack: Pack, at: int, memory: memoryview, moved: Callable[[], object]) -> memoryview:
        headers = {"Range": f"bytes={at}-{at + len(memory) - 1}", "If-Match": f'"{pack.seal.hex()}"'}
        await self._lines.read(f"{PACKS}{pack.id}", headers, memory, moved)
        return memory

    async def _whole(self, path: str, most: int) -> bytes | None:
        async with _sent(self.name), self._session.get(f"{self._base}{path}") as answer:
            if answer.status == 404:
                return None
            refuse_status(self.name, answer.status)
            return bytes(await _read(answer, most))


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
    """The connections to all peers of a pull, and the `nodes` at their ends. Made and closed within its event loop."""

    def __init__(self, addresses: Sequence[PeerAddress], token: str | None, tls: ssl.SSLContext) -> None:
        self._session, self._threads = _session_of(token, tls), threads()
        self._lines = [Lines(address, token, tls, self._threads) for address in addresses]
        self.nodes = [Node(at, self._session, lines) for at, lines in zip(addresses, self._lines, strict=True)]

    async def close(self) -> None:
        await self._session.close()
        await asyncio.gather(*(each.close() for each in self._lines))
        self._threads.shutdown()


def _session_of(token: str | None, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Returns a session for all peers; it follows no redirection, and shows the token to each."""
    limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALLED_S)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls),
        timeout=limit,
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        requote_redirect_url=False,
    )


@asynccontextmanager
async def _sent(name: str) -> AsyncIterator[None]:
    """Raises NotSent for what goes wrong on the way, PeerUnusable for a certificate that is not trusted."""
    try:
        yield
    except aiohttp.ClientSSLError as error:
        raise untrusted(name, error) from error
    except aiohttp.ClientConnectorError as error:
        raise NotSent(f"it cannot be reached: {error.strerror or error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NotSent(str(error) or type(error).__name__) from error


def parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the body as it comes."""
    return answer.content.iter_any()


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytearray:
    """Returns the body. Raises NotSent for one of more than `most` bytes."""
    found = bytearray()
    async for piece in parts(answer):
        found += piece
        if len(found) > most:
            raise NotSent(f"it answers with more than {most} bytes")
    return found
