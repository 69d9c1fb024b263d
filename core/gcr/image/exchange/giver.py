"""The places that pieces come from: exchanges of other nodes, and the store elsewhere as the last resort."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gcr.image.disk.bounce import huge_buffer
from gcr.image.exchange.address import PeerAddress, Trust
from gcr.image.exchange.lines import Lines, NotSent, threads
from gcr.image.exchange.takers import TakerGone, Takers, how_many
from gcr.image.exchange.wire import (
    IMAGES,
    LOOK,
    MARK,
    MOST_MARK,
    MOST_TOLD,
    PACKS,
    Look,
    Told,
    ToldPack,
    packed,
    parsed,
    waiting,
)
from gcr.image.pack.format import Pack
from gcr.image.remote.remote import Remote, pack_path
from gcr.imageerrors import Damaged, StoreUnusable
from gcr.swarm.peer import Limits

log = logging.getLogger(__name__)

LEAST_TO_TAKE = 1 << 30  # bytes for which takers are started: each costs 0.1 s of a processor, and 16 MB of memory
LINES, LINES_OF_ONE = 8, 4  # connections that a pull makes before there is something to ask for, and one of its takers


class Loan(Struct, frozen=True):
    """Bytes of a pack. `back`: gives their memory back, on any thread; it is called once."""

    data: memoryview
    back: Callable[[], object]


class Memories:
    """Memory for pieces. New memory has to be cleared first, which takes as long as a copy."""

    def __init__(self) -> None:
        self._spare = deque[memoryview]()

    def lent(self, size: int) -> memoryview:
        """Returns memory of `size` bytes or more."""
        with suppress(IndexError):
            found = self._spare.pop()
            if len(found) >= size:
                return found
        return huge_buffer(size)

    def back(self, memory: memoryview) -> None:
        """Takes memory back that no thread uses any more."""
        self._spare.append(memory)


class Giver(Protocol):
    """A place that pieces come from. Its methods raise NotSent."""

    name: str
    last: bool  # the last resort

    async def told(self, look: Look, packs: Mapping[str, Pack]) -> Told: ...

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> Loan:
        """Returns bytes of a pack. Calls `moved` as they come."""


class Node:
    """The exchange of another node."""

    last = False

    def __init__(self, address: PeerAddress, lines: Lines, ways: "Connections") -> None:
        self.name, self._address, self._lines, self._ways = str(address), address, lines, ways

    async def mark(self) -> bytes:
        """Returns the mark of its store, b"" if it has no store. Raises NotSent, PeerUnusable."""
        return await self._lines.whole(MARK, MOST_MARK) or b""

    async def greet(self) -> None:
        """Makes connections before they are needed."""
        await self._lines.greet(LINES)

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

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> Loan:
        path = f"{PACKS}{pack.id}"
        headers = {"Range": f"bytes={at}-{at + size - 1}", "If-Match": f'"{pack.seal.hex()}"'}
        takers = self._ways.takers
        if takers and takers.are_ready and (slot := takers.memory.slot(size)):
            with suppress(TakerGone):  # it was logged; the slot is left
                await takers.fetch(self._address, path, headers, slot, moved)
                return Loan(slot, partial(takers.memory.free, slot))
        memory = self._ways.memories.lent(size)
        await self._lines.read(path, headers, memory[:size], moved)  # a thread may write still once it has raised
        return Loan(memory[:size], partial(self._ways.memories.back, memory))


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

    async def bring(self, pack: Pack, at: int, size: int, moved: Callable[[], object]) -> Loan:
        with _answered():
            try:
                return Loan(await asyncio.to_thread(self._remote.part, pack_path(pack), at, size), lambda: None)
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
    """The connections to all peers of a pull, and the `nodes` at their ends. Used and closed within its event loop."""

    def __init__(self, addresses: Sequence[PeerAddress], token: str | None, trust: Trust) -> None:
        """Raises UsageError."""
        self.memories = Memories()
        self.takers: Takers | None = None
        self._asked = addresses, token, trust
        self._expected = 0
        self._threads = threads()
        self._lines = [Lines(address, token, trust.context, self._threads) for address in addresses]
        self.nodes = [Node(at, lines, self) for at, lines in zip(addresses, self._lines, strict=True)]

    def expect(self, size: int) -> None:
        """So many bytes more will be asked for. Starts takers once it is worth that; threads take until they are there.

        With one processor, or two, they would be in each other's way.
        """
        self._expected += size
        if self._expected >= LEAST_TO_TAKE:
            self._start_takers(0)

    def await_bytes(self) -> None:
        """The first peer will have something to send, in a while: starts takers that are connected with it by then."""
        self._start_takers(LINES_OF_ONE)

    def _start_takers(self, lines: int) -> None:
        if self.takers or (number := how_many()) < 2:
            return
        try:
            self.takers = Takers(*self._asked, number, lines)
        except OSError as error:
            log.warning("bytes of the image are taken by threads, and by no process of their own: %s", error)

    def limits(self, limits: Limits) -> Limits:
        """Returns the limits of a pull: each taker reads a piece, while another one of it is compared and written."""
        return replace(limits, requests=max(limits.requests, 2 * self.takers.number)) if self.takers else limits

    def have_come(self) -> None:
        """All bytes are here: ends the takers. Their memory goes beside what is left to do; `close` does not wait."""
        if self.takers:
            takers, self.takers = self.takers, None
            takers.end()
            try:
                Thread(target=takers.free, name="gcr-takers").start()
            except RuntimeError:  # the system has no thread left, and all bytes are here
                takers.free()

    async def close(self) -> None:
        if self.takers:
            self.takers.close()
        await asyncio.gather(*(each.close() for each in self._lines))
        self._threads.shutdown(wait=False)  # none of them is at work: to wait for their ends takes 2 ms
