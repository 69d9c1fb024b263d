"""The places that pieces come from: exchanges of other nodes, and the store elsewhere as the last resort."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import aiohttp

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, MOST_TOLD, PACKS, Look, Told, ToldPack, packed, parsed
from gcr.image.pack.format import Pack
from gcr.image.remote.remote import Remote, pack_path
from gcr.imageerrors import Damaged, StoreUnusable

CONNECT_S = 5.0
STALLED_S = 20.0  # an answer of which nothing came for so long is given up
_READ_AHEAD = 512 << 10  # bytes of one answer that wait to be taken


class NotSent(Exception):
    """A peer did not answer, or has not what it was asked for. The text says why."""


class Giver(Protocol):
    """A place that pieces come from. Its methods raise NotSent."""

    name: str
    last: bool  # the last resort

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told: ...

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> bytearray | memoryview:
        """Returns bytes of a pack, as they came; calls `moved` for each part of them."""


class Node:
    """The exchange of another node."""

    last = False

    def __init__(self, address: PeerAddress, session: aiohttp.ClientSession) -> None:
        self.name = str(address)
        self._base, self._session = address.base, session

    async def mark(self) -> bytes:
        """Returns the mark of its store, b"" if it has no store. Raises NotSent, PeerUnusable."""
        return await self._whole(MARK, 4096) or b""

    async def small(self, name: str, most: int) -> bytes | None:
        """Returns a small file of an image, None if there is none. Raises NotSent, PeerUnusable."""
        return await self._whole(f"{IMAGES}{name}", most)

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told:
        async with _sent(self.name), self._session.post(f"{self._base}{LOOK}", data=packed(look)) as answer:
            _refuse_status(answer)
            try:
                return parsed(bytes(await _read(answer, MOST_TOLD)), Told)
            except ValueError as error:
                raise NotSent(f"it answers with something else: {error}") from error

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> bytearray | memoryview:
        headers = {"Range": f"bytes={at}-{at + size - 1}", "If-Match": f'"{pack.seal.hex()}"'}
        url = f"{self._base}{PACKS}{pack.id}"
        async with _sent(self.name), self._session.get(url, headers=headers) as answer:
            _refuse_status(answer)
            return await _read_run(answer, size, moved)

    async def _whole(self, path: str, most: int) -> bytes | None:
        async with _sent(self.name), self._session.get(f"{self._base}{path}") as answer:
            if answer.status == 404:
                return None
            _refuse_status(answer)
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

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> bytearray | memoryview:
        with _answered():
            try:
                return await asyncio.to_thread(self._remote.part, pack_path(pack), at, size)
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


def session_of(token: str | None, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Returns a session for all peers; it follows no redirection, and shows the token to each."""
    limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALLED_S)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls),
        timeout=limit,
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_AHEAD,
        requote_redirect_url=False,
    )


@asynccontextmanager
async def _sent(name: str) -> AsyncIterator[None]:
    """Raises NotSent for what goes wrong on the way, PeerUnusable for a certificate that is not trusted."""
    try:
        yield
    except aiohttp.ClientSSLError as error:
        hint = "--tls-ca with the authority of its certificate, and a name in that as HOST"
        raise PeerUnusable(f"{name}: {error}", hint=hint) from error
    except aiohttp.ClientConnectorError as error:
        raise NotSent(f"it cannot be reached: {error.strerror or error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NotSent(str(error) or type(error).__name__) from error


def _refuse_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 401:
        raise PeerUnusable(f"{answer.url.host}:{answer.url.port} does not know the token", hint="--token-file")
    if answer.status not in (200, 206):
        raise NotSent(f"it answers with status {answer.status}")


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


async def _read_run(answer: aiohttp.ClientResponse, size: int, moved: Callable[[], object]) -> bytearray:
    """Returns the body. Raises NotSent for one of another number of bytes."""
    if answer.content_length != size:
        raise NotSent(f"it answers with {answer.content_length} bytes instead of {size}")
    found, at = bytearray(size), 0
    async for piece in parts(answer):
        found[at : at + len(piece)] = piece
        at += len(piece)
        moved()
    if at != size or len(found) != size:
        raise NotSent(f"it sent {at} bytes instead of {size}")
    return found
