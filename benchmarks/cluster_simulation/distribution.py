"""The distribution of one image to many nodes, simulated: the choices are gcr's own (core/gcr/swarm), no link is real.

All nodes begin at once, and none has the image. The store elsewhere is their last resort. Each node has a link, and so
has the store; a link carries one piece after the other in each direction. A node asks what others have, and pulls, as
gcr.image.exchange does: 64 packs at a time, which is a *round*, each with a swarm of its own.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from cluster_simulation.clock import Clock
from gcr.image.exchange.coming import MOST_PIECE
from gcr.swarm.peer import Limits
from gcr.swarm.swarm import Bring, Drop, Look, Swarm

STORE = "store"
PACKS_A_ROUND = 64
IN_FLIGHT = Limits().in_flight // MOST_PIECE  # pieces, at most


class Sharing(Struct, frozen=True):
    """An image for many nodes. Sizes are bytes, rates bytes a second, times seconds.

    pieces: larger than gcr's own where those would be too many · link: of a node, in each direction · store: the rate
    of the store, to all nodes together · away: one way between two nodes, or to the store · looks: questions a second
    that one node asks others for what they have · in_flight: pieces that one node has asked for, at most
    """

    nodes: int = 64
    image: int = 1 << 40
    packs: int = 64
    piece: int = 64 << 20
    link: float = 10e9
    store: float = 10e9
    away: float = 0.0005
    looks: float = Limits().looks
    in_flight: int = IN_FLIGHT

    @property
    def bound_s(self) -> float:
        """Returns the least time: each node's link carries the image, and the store sends each byte once."""
        return self.image / min(self.link, self.store)

    @property
    def rounds(self) -> tuple[int, ...]:
        """Returns the number of pieces of each round."""
        each, more = divmod(self.image // self.piece, rounds := -(-self.packs // PACKS_A_ROUND))
        return tuple(each + (number < more) for number in range(rounds))


class Shared(Struct, frozen=True):
    """A distribution. `copies`: bytes that the store sent, by those of the image: of each chunk on the average

    first_s, last_s: until the first and the last node had the image · bound: the share of the bound that it reached
    alone_s: the bound where the store sends to each node all of it · most_sent: copies that one node sent at most
    """

    series: str
    nodes: int
    image: int
    pieces: int
    rounds: int
    copies: float
    first_s: float
    last_s: float
    bound: float
    alone_s: float
    most_sent: float


def sharings() -> Mapping[str, Sharing]:
    """Returns each series by name."""
    found = {f"{nodes} nodes": Sharing(nodes) for nodes in (8, 16, 32, 64)}
    far = Sharing(4, image=64 << 30, packs=8, piece=8 << 20, link=3.125e9, store=3.125e9, away=0.025)
    return {
        **found,
        **{f"far: {nodes} nodes, 50 ms": replace(far, nodes=nodes) for nodes in (1, 4, 16)},
        "far: 16 nodes, 50 ms, 4 GiB": replace(far, nodes=16, image=4 << 30),
        "64 nodes, four rounds": Sharing(packs=4 * PACKS_A_ROUND),
        "64 nodes, a store four times as fast": Sharing(store=40e9),
    }


class _Way:
    """One direction of a link."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at = rate, 0.0
        self.sent = 0

    def take(self, now: float, size: int) -> float:
        """Returns when the link has carried so many more bytes."""
        self._free_at = max(self._free_at, now) + size / self._rate
        self.sent += size
        return self._free_at


class _Round(Struct):
    """One node's pieces of a round, in the order in which they came, and those that it gave to others."""

    has: list[int]
    given: list[int]


class _Node:
    """One node: it receives, and gives what it has."""

    def __init__(self, name: str, world: "Receivers") -> None:
        self.name, self._world = name, world
        self.up, self._down = _Way(world.sharing.link), _Way(world.sharing.link)
        self.rounds = [_Round([], []) for _ in world.sharing.rounds]
        self.done_s: float | None = None
        self._round = -1
        self._begin()

    def _begin(self) -> None:
        self._round += 1
        if self._round == len(self.rounds):
            self.done_s = self._world.clock.now
            return
        sharing, count = self._world.sharing, self._world.sharing.rounds[self._round]
        peers = {name: name == STORE for name in self._world.names if name != self.name}
        limits = Limits(in_flight=sharing.in_flight * sharing.piece, looks=sharing.looks)
        self._swarm = Swarm([sharing.piece] * count, peers, limits, self._world.chance, self._world.clock.now)
        self._known: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._under_way: dict[tuple[str, int], float] = {}
        self._go_on()

    def _go_on(self) -> None:
        now = self._world.clock.now
        for order in self._swarm.orders(now):
            match order:
                case Look(peer):
                    self._world.clock.after(2 * self._world.sharing.away, partial(self._told, self._round, peer))
                case Bring(peer, piece):
                    self._ask(peer, piece)
                case Drop(peer, piece):
                    self._under_way.pop((peer, piece), None)

    def _told(self, number: int, peer: str) -> None:
        if number != self._round:
            return
        there, now = self._world.rounds_of(peer)[number], self._world.clock.now
        has, given = self._known[peer]
        self._known[peer] = len(there.has), len(there.given)
        growing = peer != STORE and 0 < len(there.has) < self._world.sharing.rounds[number]
        self._swarm.told(peer, now, there.has[has:], there.given[given:], growing)
        self._go_on()
        self._world.clock.at(self._swarm.next_at(now), partial(self._woken, number))

    def _woken(self, number: int) -> None:
        if number == self._round:
            self._go_on()

    def _ask(self, peer: str, piece: int) -> None:
        sharing, now = self._world.sharing, self._world.clock.now
        if peer != STORE:
            self._world.rounds_of(peer)[self._round].given.append(piece)
        asked = now + sharing.away
        sent = self._world.up_of(peer).take(asked, sharing.piece)
        came = max(sent, self._down.take(asked, sharing.piece)) + sharing.away
        self._under_way[peer, piece] = came
        self._world.clock.at(came, partial(self._came, self._round, peer, piece, came))

    def _came(self, number: int, peer: str, piece: int, at: float) -> None:
        if number != self._round or self._under_way.get((peer, piece)) != at:
            return  # it was dropped
        del self._under_way[peer, piece]
        if self._swarm.came(peer, piece, self._world.clock.now):
            self.rounds[number].has.append(piece)
        if self._swarm.is_done():
            self._begin()
        else:
            self._go_on()


class Receivers:
    """All nodes and the store."""

    def __init__(self, sharing: Sharing, seed: int) -> None:
        self.sharing, self.clock, self.chance = sharing, Clock(), Random(seed)
        self.names = [STORE, *(f"node-{number}" for number in range(sharing.nodes))]
        self._store, self._of_store = _Way(sharing.store), [_Round([*range(count)], []) for count in sharing.rounds]
        self._nodes: dict[str, _Node] = {}
        for name in self.names[1:]:
            self._nodes[name] = _Node(name, self)

    def rounds_of(self, name: str) -> list[_Round]:
        return self._of_store if name == STORE else self._nodes[name].rounds

    def up_of(self, name: str) -> _Way:
        return self._store if name == STORE else self._nodes[name].up

    def run(self, series: str) -> Shared:
        """Raises AssertionError where a node did not get the image."""
        self.clock.run()
        ends = [node.done_s for node in self._nodes.values() if node.done_s is not None]
        assert len(ends) == self.sharing.nodes, f"{self.sharing.nodes - len(ends)} nodes lack pieces"
        size = sum(self.sharing.rounds) * self.sharing.piece
        return Shared(
            series=series,
            nodes=self.sharing.nodes,
            image=size,
            pieces=sum(self.sharing.rounds),
            rounds=len(self.sharing.rounds),
            copies=self._store.sent / size,
            first_s=min(ends),
            last_s=max(ends),
            bound=self.sharing.bound_s / max(ends),
            alone_s=max(size * self.sharing.nodes / self.sharing.store, size / self.sharing.link),
            most_sent=max(node.up.sent for node in self._nodes.values()) / size,
        )
