"""Pieces are brought as the swarm orders: what it is told of a giver fits what it knows of that one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from gcr.image.exchange.bringing import Bringing, Brought, Hands
from gcr.image.exchange.giver import Loan
from gcr.image.exchange.known import Piece
from gcr.image.exchange.lines import NotSent
from gcr.image.exchange.wire import Look as Asked
from gcr.image.exchange.wire import Told, ToldPack
from gcr.image.pack.format import Pack
from gcr.image.remote.transfer import Transfer
from gcr.swarm.peer import Limits
from gcr.swarm.swarm import Look, Order, Swarm

PACK = Pack("0" * 32, bytes(32), 1 << 20)


class FailsOnce:
    """A giver of the whole pack that fails its first piece in the instant in which it is to be looked at again."""

    name, last = "node", False

    def __init__(self) -> None:
        self.brings: list[asyncio.Future[Loan]] = []

    async def told(self, look: Asked, _packs: Mapping[str, Pack]) -> Told:
        (asked,) = look.packs.values()
        return Told({PACK.id: ToldPack(whole=True, given_at=asked.given)})

    async def bring(self, _pack: Pack, _at: int, size: int, _moved: Callable[[], object]) -> Loan:
        self.brings.append(asyncio.get_running_loop().create_future())
        if len(self.brings) > 1:
            return Loan(memoryview(bytes(size)), lambda: None)
        return await self.brings[0]

    def heard_of(self, orders: Sequence[Order]) -> None:
        if self.brings and not self.brings[0].done() and any(isinstance(each, Look) for each in orders):
            self.brings[0].set_exception(NotSent("it broke off"))


def test_a_giver_that_fails_as_a_look_at_it_is_ordered_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to that look counts for nothing, so the next one must not be asked for less."""
    giver, came, ordered = FailsOnce(), list[Piece](), Swarm.orders

    def orders(swarm: Swarm, now: float) -> list[Order]:
        found = ordered(swarm, now)
        giver.heard_of(found)
        return found

    monkeypatch.setattr(Swarm, "orders", orders)
    hands, limits = Hands(Transfer("pull", 60.0)), Limits(look=0.01, rest=0.01, most_rest=0.01, stuck=3.0)
    piece = Piece(PACK, 0, PACK.bytes, lambda _data: None)

    async def bring() -> None:
        await Bringing([piece], [giver], hands, Brought(), limits, came.append).run()

    asyncio.run(bring())
    hands.close()
    assert (came, len(giver.brings)) == ([piece], 2)
