"""Brings pieces from several givers at once: does what the swarm orders, and tells it what became of that."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from gcr.exchangeerrors import PeerUnusable, PiecesMissing
from gcr.image.exchange.giver import Giver, Loan
from gcr.image.exchange.known import Known, Piece, Pieces
from gcr.image.exchange.lines import NotSent
from gcr.image.exchange.wire import Told, ToldPack
from gcr.image.remote.transfer import Transfer
from gcr.imageerrors import Damaged
from gcr.swarm.peer import Limits
from gcr.swarm.swarm import Bring, Drop, Look, Swarm

log = logging.getLogger(__name__)

TICK_S = 0.1
THREADS = max(4, min(8, len(os.sched_getaffinity(0))))

T = TypeVar("T")


class Hands:
    """Threads that compare and write, for all works of a pull. A transfer gets on while none of them hangs."""

    def __init__(self, transfer: Transfer) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "gcr-pull")
        self._transfer = transfer
        self._working: set[asyncio.Future[Any]] = set()
        self._ended = True
        self._tell_at = 0.0

    def begin(self, work: Callable[..., T], *given: object) -> "asyncio.Future[T]":
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *given)
        self._working.add(future)
        future.add_done_callback(self._over)
        return future

    def check(self) -> None:
        """Raises DeadlinePassed. A disk that hangs makes the transfer silent."""
        if self._ended or not self._working:
            self._transfer.check()
        self._ended = False
        self._transfer.check_deadline()
        now = time.monotonic()
        if now >= self._tell_at:  # a telling costs more than a piece, and goes to other processes
            self._tell_at = now + TICK_S
            self._transfer.report()

    def close(self) -> None:
        self._pool.shutdown()

    def _over(self, future: asyncio.Future[Any]) -> None:
        self._working.discard(future)
        self._ended = True
        if not future.cancelled():
            future.exception()  # it was raised to the caller, or the caller has left


class Works:
    """The works of one purpose, such as one pack: others may go on when these are over."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._working: set[asyncio.Future[Any]] = set()

    async def do(self, work: Callable[..., T], *given: object) -> T:
        """Returns the result of `work`, which runs to its end even if the caller is cancelled."""
        future = self._hands.begin(work, *given)
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        return await asyncio.shield(future)

    async def rest(self) -> None:
        """Returns once none of them runs."""
        while self._working:
            await asyncio.wait(self._working)


class Brought:
    """The bytes that each giver sent, and the givers that sent wrong ones."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.distrusted: set[str] = set()


class Bringing:
    """Brings some pieces from givers, all of them or none of interest."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        givers: Sequence[Giver],
        hands: Hands,
        brought: Brought,
        limits: Limits,
        came: Callable[[Piece], object],
        whole: Collection[str] = (),
    ) -> None:
        """`came` is called for each piece that is here; givers that are distrusted already are not asked.

        whole: givers that have all of the pieces, as is known: none is asked for that before it has failed once
        """
        self._pieces = Pieces(pieces)
        self._givers = {giver.name: giver for giver in givers if giver.name not in brought.distrusted}
        self._known = {name: Known(self._pieces) for name in self._givers}
        self._hands, self._brought, self._came, self._whole = hands, brought, came, {*whole}
        self._works = Works(hands)
        last = {name: giver.last for name, giver in self._givers.items()}
        sizes = [piece.size for piece in pieces]
        self._swarm = Swarm(sizes, last, limits, Random(), time.monotonic())
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}  # looks have the number -1
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Raises PiecesMissing, Damaged, DeadlinePassed, and what `take` raises; nothing is under way then."""
        try:
            while not self._swarm.is_done():
                now = time.monotonic()
                for order in self._swarm.orders(now):
                    self._obey(order)
                if self._error:
                    raise self._error
                if self._swarm.is_hopeless(now):
                    raise self._hopeless()
                self._hands.check()
                await self._wait(self._swarm.next_at(now) - now)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._works.rest()

    async def _wait(self, seconds: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(max(0.0, min(seconds, TICK_S))):
                await self._news.wait()
        except TimeoutError:
            pass

    def _obey(self, order: Look | Bring | Drop) -> None:
        match order:
            case Look(peer):  # a failure before the task begins has the swarm ignore its answer, and renews `_known`
                self._begin(peer, -1, self._look(self._givers[peer], self._known[peer]))
            case Bring(peer, piece):
                self._begin(peer, piece, self._bring(self._givers[peer], piece))
            case Drop(peer, piece):
                if task := self._tasks.pop((peer, piece), None):
                    task.cancel()

    def _begin(self, peer: str, number: int, work: Coroutine[Any, Any, None]) -> None:
        key = peer, number
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._over(key, task))

    def _over(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()):
            self._error = self._error or error
        self._news.set()

    async def _look(self, giver: Giver, known: Known) -> None:
        try:
            told = await self._told(giver, known)
        except (NotSent, PeerUnusable) as error:
            log.info("%s: %s", giver.name, error)
            self._forget(giver)
            self._swarm.silent(giver.name, time.monotonic())
            return
        news = known.learned(told)
        self._swarm.told(giver.name, time.monotonic(), news.has, news.given, news.growing)

    async def _told(self, giver: Giver, known: Known) -> Told:
        if giver.name not in self._whole:
            return await giver.told(known.look(), self._pieces.packs)
        self._whole.discard(giver.name)
        return Told({id: ToldPack(whole=True) for id in self._pieces.packs})

    def _forget(self, giver: Giver) -> None:
        """Has the giver tell all of its pieces again. What a look under way brings goes with the former knowledge."""
        self._known[giver.name] = Known(self._pieces)

    async def _bring(self, giver: Giver, number: int) -> None:
        piece = self._pieces.all[number]
        try:
            loan = await giver.bring(piece.pack, piece.at, piece.size, self._moved)
        except (NotSent, PeerUnusable) as error:
            log.info("%s: %s", giver.name, error)
            self._forget(giver)
            self._swarm.failed(giver.name, number, time.monotonic())
            return
        self._brought.bytes[giver.name] += piece.size
        try:
            await self._works.do(_take, piece, loan)
        except Damaged as error:
            self._distrust(giver.name, number, error)
            return
        if self._swarm.came(giver.name, number, time.monotonic()):
            self._came(piece)

    def _moved(self) -> None:
        self._swarm.moved(time.monotonic())

    def _distrust(self, name: str, number: int, error: Damaged) -> None:
        log.warning("%s sent wrong bytes, and is asked no more: %s", name, error.message)
        self._brought.distrusted.add(name)
        self._swarm.wrong(name, number, time.monotonic())

    def _hopeless(self) -> PiecesMissing | Damaged:
        """Returns the error for pieces that do not come."""
        missing = [self._pieces.all[number] for number in self._swarm.missing()]
        size, packs = sum(piece.size for piece in missing), sorted({piece.pack.id for piece in missing})
        text = f"{len(missing)} pieces ({size} bytes) of {_some(packs)} did not come: no peer has them, or none answers"
        if wrong := sorted(self._brought.distrusted):
            return Damaged(f"{text}; {', '.join(wrong)} sent wrong bytes", hint="gcr verify --deep there")
        return PiecesMissing(text, hint="the same again, with more peers or the URL of a store: what came is kept")


def _take(piece: Piece, loan: Loan) -> None:
    try:
        piece.take(loan.data)
    finally:
        loan.back()


def _some(packs: Sequence[str]) -> str:
    more = f" and {len(packs) - 3} more" if len(packs) > 3 else ""
    return f"{'pack' if len(packs) == 1 else 'packs'} {', '.join(packs[:3])}{more}"
