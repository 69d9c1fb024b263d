"""The packs of one pull on their way into a store: many at once where all of them are known, or each as it is named.

Those of an image that is being made come ahead of it, each by itself and some side by side. A pull that brings packs
ahead waits for no lock: it leaves a pack to the pull that has it. So two pulls never wait for each other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from gcr.image.exchange.bringing import THREADS, TICK_S, Bringing, Brought, Hands, Works
from gcr.image.exchange.coming import PIECE_AHEAD, ComingPack, piece_bytes
from gcr.image.exchange.giver import Connections, Giver
from gcr.image.exchange.known import Piece
from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.remote.arriving import Arriving
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, WrongImage
from gcr.swarm.peer import Limits

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 4  # packs that come ahead side by side: so many are written at once
COMPARING = THREADS - 1  # steps that compare packs once more at once: the threads that are left take what comes


class Incoming:
    """Brings packs from givers. All calls within one event loop; `end` it."""

    def __init__(
        self,
        connections: Connections,
        givers: Sequence[Giver],
        hands: Hands,
        limits: Limits,
        transfer: Transfer,
    ) -> None:
        self._connections, self._givers, self._hands, self.brought = connections, givers, hands, Brought()
        self._limits, self._transfer = limits, transfer
        self.works = Works(hands)
        self._ahead = dict[str, asyncio.Task[bool]]()
        self._ends = dict[str, asyncio.Future[PackReader | None]]()
        self._here: Mapping[Pack, PackReader] = {}
        self._at_once, self._comparing = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(COMPARING)

    def know(self, here: Mapping[Pack, PackReader]) -> None:
        """Takes packs that are in the store, and were not found damaged. They are not opened once more."""
        self._here = here

    def has(self, store: Store, pack: Pack) -> bool:
        """Returns whether the pack is in the store, and was not found damaged. Raises as Packs.has."""
        return store.packs.is_kept(pack) if pack in self._here else store.packs.has(pack)

    # ---- ahead of the image -------------------------------------------------------------------------------------

    def begin(self, store: Store, pack: Pack, giver: str) -> None:
        """Begins to bring a pack, unless it is here. `giver`: the name of one that has it."""
        if pack.id not in self._ahead and not (pack in self._here and store.packs.is_kept(pack)):
            self._ends[pack.id] = asyncio.get_running_loop().create_future()
            self._ahead[pack.id] = asyncio.create_task(self._come(store, pack, giver))
            self._ahead[pack.id].add_done_callback(lambda _task: self._end_is_here(pack, None))

    async def reader(self, store: Store, pack: Pack) -> PackReader:
        """Returns a pack that was begun, once its end is here. Raises Damaged, WrongImage, OSError."""
        if found := self._here.get(pack):
            return found
        end = self._ends[pack.id]
        await asyncio.wait({end})
        if found := end.result():
            return found
        return await self.works.do(store.packs.reader, pack)

    def refuse_failed(self) -> None:
        """Raises the error of a pack that was begun, if one has failed; DeadlinePassed."""
        self._hands.check()
        for task in self._ahead.values():
            if task.done():
                task.result()

    async def over(self, packs: Sequence[Pack]) -> Sequence[Pack]:
        """Returns those of the packs that were not brought by `begin`, once each of these is here.

        Raises the first error: Damaged, WrongImage, PiecesMissing, DeadlinePassed, OSError.
        """
        tasks = {*self._ahead.values()}
        while tasks:
            self._hands.check()
            done, tasks = await asyncio.wait(tasks, timeout=TICK_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        return [pack for pack in packs if pack.id not in self._ahead or not self._ahead[pack.id].result()]

    async def end(self) -> None:
        """Ends what is under way."""
        for task in self._ahead.values():
            task.cancel()
        await asyncio.gather(*self._ahead.values(), return_exceptions=True)
        await self.works.rest()

    async def _come(self, store: Store, pack: Pack, giver: str) -> bool:
        """Returns whether the pack was brought: not where it is here, nor where another pull brings it."""
        works = Works(self._hands)
        if await works.do(store.packs.has, pack):
            return False
        async with self._at_once:
            with ExitStack() as stack:
                arriving = Arriving(store, pack, self._transfer.check)
                fd = stack.enter_context(arriving.opened_at_once())
                if fd is None:
                    return False
                coming = ComingPack(arriving, fd, self._transfer, stack)
                if coming.is_there():
                    return False
                self._transfer.total += pack.bytes
                try:
                    await self._bring(works, [coming], PIECE_AHEAD, [giver])
                finally:
                    await works.rest()
        log.info("a pack of %d bytes came ahead of its image", pack.bytes)
        return True

    def _end_is_here(self, pack: Pack, reader: PackReader | None) -> None:
        if (end := self._ends.get(pack.id)) and not end.done():
            end.set_result(reader)

    # ---- all at once --------------------------------------------------------------------------------------------

    def piece_bytes(self, packs: Sequence[Pack]) -> int:
        return piece_bytes(sum(pack.bytes for pack in packs), len(self._givers))

    async def bring(self, coming: Sequence[ComingPack], size: int) -> None:
        """Brings packs in pieces of `size` bytes. Raises as `over`."""
        self._connections.expect(sum(each.pack.bytes for each in coming))
        works = Works(self._hands)
        try:
            await self._bring(works, coming, size)
        finally:
            await works.rest()

    async def _bring(self, works: Works, coming: Sequence[ComingPack], size: int, whole: Sequence[str] = ()) -> None:
        """`whole`: givers that have all of the packs, as is known."""
        await each_of(lambda each: works.do(each.begin), coming)
        packs = {each.pack.id: each for each in coming}
        finishing = set[asyncio.Task[None]]()

        def came(piece: Piece) -> None:
            self._transfer.add(piece.size)

        def chunks_came(piece: Piece) -> None:
            came(piece)
            pack = packs[piece.pack.id]
            pack.left -= 1
            if not pack.left:
                finishing.add(asyncio.create_task(self._finish(works, pack)))

        try:
            await self._round([piece for each in coming for piece in each.footer_pieces(bool(whole))], came, whole)
            await self._round([piece for each in coming for piece in each.index_pieces()], came, whole)
            for each in coming:
                self._end_is_here(each.pack, each.reader)
            found = await asyncio.gather(*(works.do(each.chunk_pieces, size) for each in coming))
            for each in coming:
                if not each.left:
                    finishing.add(asyncio.create_task(self._finish(works, each)))
            await self._round([piece for pieces in found for piece in pieces], chunks_came, whole)
            while any(not task.done() for task in finishing):
                self._hands.check()
                await asyncio.wait(finishing, timeout=TICK_S)
            for task in finishing:
                task.result()
        finally:
            await works.rest()
            await asyncio.gather(*finishing, return_exceptions=True)

    async def _round(self, pieces: Sequence[Piece], came: Callable[[Piece], object], whole: Sequence[str]) -> None:
        if pieces:
            limits = self._connections.limits(self._limits)
            await Bringing(pieces, self._givers, self._hands, self.brought, limits, came, whole).run()

    async def _finish(self, works: Works, pack: ComingPack) -> None:
        """Compares a pack once more, from the disk, and gives it its name. Raises Damaged, WrongImage, OSError."""

        async def compare(step: Callable[[], object]) -> None:
            async with self._comparing:
                await works.do(step)

        try:
            await each_of(compare, await works.do(pack.comparisons))
        except (WrongImage, Damaged):
            await works.do(pack.discard)
            raise
        await works.do(pack.finish)


async def each_of(work: Callable[[T], Awaitable[object]], items: Sequence[T]) -> None:
    """Does the work for all at once; raises the first error once all are over."""
    done = await asyncio.gather(*map(work, items), return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
