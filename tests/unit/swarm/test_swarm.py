"""The swarm's choices: every piece comes once, or is named as missing; requests stay within their limits."""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gcr.swarm.bag import Bag
from gcr.swarm.peer import Limits
from gcr.swarm.swarm import Bring, Drop, Look, Swarm

LIMITS = Limits(at_one=2, in_flight=30, look=0.2, late=3.0, rest=0.5, most_rest=4.0, stuck=40.0)
PATIENT = replace(LIMITS, look=1.0, stuck=300.0)  # some peers hold a request for half a minute, and send nothing


@dataclass
class Peer:
    """A peer of the simulation. `has`: pieces, with the time from which it has them."""

    has: dict[int, float]
    lies: frozenset[int] = frozenset()
    dies: float = inf
    back: float = inf
    slow: float = 0.1
    silent: bool = False  # it takes requests and never answers

    def lives(self, now: float) -> bool:
        return not self.dies <= now < self.back


@dataclass
class World:
    """One receiver's swarm, and its peers. Requests that are dropped bring no event."""

    sizes: Sequence[int]
    peers: dict[str, Peer]
    last: frozenset[str] = frozenset()
    limits: Limits = LIMITS
    seed: int = 0
    now: float = 0.0
    came: list[tuple[int, str]] = field(default_factory=list)
    brought: list[tuple[float, str, int]] = field(default_factory=list)
    lied: set[str] = field(default_factory=set)

    def run(self) -> Swarm:
        self.swarm = Swarm(
            self.sizes, {name: name in self.last for name in self.peers}, self.limits, random.Random(self.seed), 0.0
        )
        self.events: list[tuple[float, int, str, str, int]] = []
        self.tickets, self.wanted = count(), dict[tuple[str, int], int]()
        self.failures = dict.fromkeys(self.peers, 0)
        self.told: dict[str, set[int]] = {name: set() for name in self.peers}
        for _ in range(20_000):
            self.obey()
            if self.swarm.is_done() or self.swarm.is_hopeless(self.now):
                return self.swarm
            self.now = min(self.swarm.next_at(self.now), self.events[0][0] if self.events else inf)
            assert self.now < inf
            while self.events and self.events[0][0] <= self.now:
                self.happen(*heappop(self.events)[1:])
        raise AssertionError("it never ends")

    def obey(self) -> None:
        for order in self.swarm.orders(self.now):
            match order:
                case Look(peer):
                    self.later(0.05, "look", peer, self.failures[peer])
                case Drop(peer, piece):
                    self.wanted.pop((peer, piece), None)  # its event may have come in the same instant
                case Bring(peer, piece):
                    assert (peer, piece) not in self.wanted
                    assert piece in self.told[peer], "it never said that it has this piece"
                    assert peer not in self.lied
                    self.brought.append((self.now, peer, piece))
                    ticket = self.later(self.peers[peer].slow, "bring", peer, piece)
                    self.wanted[peer, piece] = ticket
                    for number in range(1, int(self.peers[peer].slow / 5) + 1):
                        self.later(5.0 * number, "moved", peer, piece)
        self.check()

    def check(self) -> None:
        asked = {(peer, piece) for peer, pieces in self.swarm.asked().items() for piece in pieces}
        assert asked == {*self.wanted}
        for name in self.peers:
            assert sum(peer == name for peer, _ in asked) <= self.limits.at_one
        assert len(asked) <= 1 or sum(self.sizes[piece] for _, piece in asked) <= self.limits.in_flight

    def later(self, after: float, kind: str, peer: str, piece: int) -> int:
        ticket = next(self.tickets)
        heappush(self.events, (self.now + after, ticket, kind, peer, piece))
        return ticket

    def happen(self, ticket: int, kind: str, name: str, piece: int) -> None:
        peer = self.peers[name]
        if kind == "look":
            self.look(name, peer, piece)
            return
        if kind == "moved":
            if (name, piece) in self.wanted and peer.lives(self.now) and not peer.silent:
                self.swarm.moved(self.now)
            return
        if self.wanted.get((name, piece)) != ticket:
            return
        if kind == "bring" and peer.silent:
            self.wanted[name, piece] = self.later(10.0, "stalled", name, piece)
            return
        del self.wanted[name, piece]
        if kind == "stalled" or not peer.lives(self.now):
            if piece in self.swarm.asked().get(name, ()):  # else it was dropped in the same instant
                self.told[name].clear()
                self.failures[name] += 1
            self.swarm.failed(name, piece, self.now)
        elif piece in peer.lies:
            self.lied.add(name)
            self.swarm.wrong(name, piece, self.now)
        else:
            if self.swarm.came(name, piece, self.now):
                self.came.append((piece, name))

    def look(self, name: str, peer: Peer, failures: int) -> None:
        if not peer.lives(self.now):
            self.told[name].clear()
            self.swarm.silent(name, self.now)
            return
        if failures != self.failures[name]:  # it was asked before a failure for what was new
            self.swarm.told(name, self.now, ())
            return
        there = {piece for piece, since in peer.has.items() if since <= self.now}
        fresh = there - self.told[name]
        self.told[name] |= fresh
        self.swarm.told(name, self.now, sorted(fresh), (), any(since > self.now for since in peer.has.values()))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=25))
    times = st.sampled_from([0.0, 0.0, 0.0, 2.0, 9.0])
    peers = {}
    for number in range(draw(st.integers(1, 5))):
        pieces = draw(st.sets(st.integers(0, len(sizes) - 1)) | st.just(set(range(len(sizes)))))
        dies = draw(st.just(inf) | st.floats(0, 5))
        peers[f"p{number}"] = Peer(
            {piece: draw(times) for piece in sorted(pieces)},
            frozenset(draw(st.sets(st.sampled_from(sorted(pieces)), max_size=2))) if pieces else frozenset(),
            dies,
            dies + draw(st.just(inf) | st.floats(0, 5)),
            draw(st.sampled_from([0.01, 0.1, 1.0, 20.0])),
            draw(st.integers(0, 5)) == 0,
        )
    last = frozenset(draw(st.sets(st.sampled_from(sorted(peers)), max_size=1)))
    return World(sizes, peers, last, PATIENT, draw(st.integers(0, 9)))


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_each_piece_comes_once_or_is_named(world: World) -> None:
    swarm = world.run()
    pieces = [piece for piece, _ in world.came]
    assert sorted([*pieces, *swarm.missing()]) == list(range(len(world.sizes)))
    assert {*swarm.distrusted()} == world.lied
    taken = any(peer.silent for peer in world.peers.values())  # the last resort may wait for these, one after the other
    for piece in swarm.missing():
        for name, peer in world.peers.items():
            honest = not peer.silent and not peer.lies and peer.dies == inf and piece in peer.has
            assert not honest or (taken and name in world.last), f"{name} has piece {piece}"


def whole(pieces: int, **facts: object) -> Peer:
    return Peer(dict.fromkeys(range(pieces), 0.0), **facts)  # type: ignore[arg-type]


def test_the_rarest_piece_is_asked_first() -> None:
    world = World([1] * 9, {"source": whole(9), "other": Peer(dict.fromkeys(range(8), 0.0))})
    world.run()
    of_source = [piece for _, peer, piece in world.brought if peer == "source"]
    assert of_source[0] == 8


def test_pieces_that_a_peer_gave_to_others_are_less_rare() -> None:
    swarm = Swarm([1] * 4, {"source": False}, LIMITS, random.Random(1), 0.0)
    assert swarm.orders(0.0) == [Look("source")]
    swarm.told("source", 0.1, range(4), [0, 1, 3])
    assert swarm.orders(0.1)[0] == Bring("source", 2)


def test_the_last_resort_is_asked_for_what_no_other_peer_has() -> None:
    world = World([1] * 9, {"bucket": whole(9), "peer": Peer(dict.fromkeys(range(7), 0.0))}, frozenset({"bucket"}))
    world.run()
    assert sorted(piece for _, peer, piece in world.brought if peer == "bucket") == [7, 8]


def test_the_last_resort_waits_until_all_others_have_said_what_they_have() -> None:
    swarm = Swarm([1], {"bucket": True, "peer": False}, LIMITS, random.Random(1), 0.0)
    assert {*swarm.orders(0.0)} == {Look("bucket"), Look("peer")}
    swarm.told("bucket", 0.1, [0])
    assert swarm.orders(0.1) == []
    swarm.silent("peer", 0.2)
    assert swarm.orders(0.2) == [Bring("bucket", 0)]


def test_the_last_resort_is_asked_where_a_peer_only_says_that_it_has_a_piece() -> None:
    world = World([1] * 5, {"bucket": whole(5), "boaster": whole(5, silent=True)}, frozenset({"bucket"}))
    assert world.run().is_done() and world.now < 30


def test_an_answer_from_before_a_failure_counts_for_nothing() -> None:
    swarm = Swarm([1, 1], {"peer": False}, LIMITS, random.Random(1), 0.0)
    swarm.orders(0.0)
    swarm.told("peer", 0.1, [0])
    assert swarm.orders(0.4) == [Look("peer"), Bring("peer", 0)]
    swarm.failed("peer", 0, 0.5)
    swarm.told("peer", 0.6, [1])
    assert swarm.orders(0.7) == [] and not swarm.is_hopeless(0.7)
    assert swarm.orders(1.1) == [Look("peer")]
    swarm.told("peer", 1.2, [0, 1])
    assert {*swarm.orders(1.2)} == {Bring("peer", 0), Bring("peer", 1)}


def test_a_late_piece_is_asked_of_a_second_peer_and_the_first_rests() -> None:
    world = World([1] * 8, {"slow": whole(8, slow=30.0), "quick": whole(8)})
    world.run()
    assert world.now < 5.0
    assert {peer for _, peer in world.came} == {"quick"}
    assert max(time for time, peer, _ in world.brought if peer == "slow") == pytest.approx(0.05)


def test_a_slow_peer_that_alone_has_a_piece_is_waited_for() -> None:
    world = World([1] * 3, {"slow": whole(3, slow=300.0)})
    assert world.run().is_done()


def test_a_peer_that_lied_is_asked_no_more_and_its_requests_are_dropped() -> None:
    world = World([1] * 9, {"liar": whole(9, lies=frozenset(range(9)))})
    swarm = world.run()
    assert swarm.distrusted() == ["liar"] and len(world.brought) == 2
    assert swarm.missing() == list(range(9)) and swarm.asked() == {}


def test_a_peer_that_comes_back_is_asked_again() -> None:
    world = World([1] * 50, {"source": whole(50, dies=0.4, back=9.0)})
    assert world.run().is_done()


def test_it_gives_up_once_nothing_comes_for_too_long() -> None:
    world = World([1], {"growing": Peer({0: 1e9})})
    assert world.run().missing() == [0]
    assert world.now == pytest.approx(LIMITS.stuck, abs=1)


def test_it_gives_up_at_once_if_no_peer_will_have_a_piece() -> None:
    world = World([1, 1], {"a": Peer({0: 0.0}), "b": Peer({0: 0.0})})
    assert world.run().missing() == [1]
    assert world.now < 1


def test_one_piece_may_be_larger_than_all_that_may_be_in_flight() -> None:
    assert World([50, 50, 1], {"a": whole(3), "b": whole(3)}).run().is_done()


def test_eight_receivers_of_one_source_make_it_send_less_than_two_copies() -> None:
    """Every receiver has its own swarm; they see each other's pieces at each look."""
    pieces, names = 60, [f"n{number}" for number in range(8)]
    swarms = {
        name: Swarm(
            [1] * pieces, dict.fromkeys(["source", *names], False), Limits(in_flight=99), random.Random(name), 0
        )
        for name in names
    }
    has: dict[str, set[int]] = {name: set() for name in names} | {"source": set(range(pieces))}
    told: dict[tuple[str, str], set[int]] = {}
    given: list[int] = []
    seen = dict.fromkeys(names, 0)
    waiting: dict[str, list[tuple[str, int]]] = {name: [] for name in has}
    for step in range(10_000):
        now = step * 0.05
        for name, swarm in swarms.items():
            for order in swarm.orders(now):
                match order:
                    case Look(peer):
                        fresh = has[peer] - told.setdefault((name, peer), set())
                        told[name, peer] |= fresh
                        of_source = given[seen[name] :] if peer == "source" else ()
                        seen[name] = len(given) if peer == "source" else seen[name]
                        swarm.told(peer, now, sorted(fresh), of_source, True)
                    case Bring(peer, piece):
                        waiting[peer].append((name, piece))
                        if peer == "source":
                            given.append(piece)
                    case Drop(peer, piece):
                        if (name, piece) in waiting[peer]:
                            waiting[peer].remove((name, piece))
        for peer, line in waiting.items():  # each sends one piece a step
            if line:
                name, piece = line.pop(0)
                has[name].add(piece)
                swarms[name].came(peer, piece, now)
        if all(swarm.is_done() for swarm in swarms.values()):
            break
    assert all(swarm.is_done() for swarm in swarms.values())
    assert len(given) / pieces < 1.6
    assert step < 1.6 * pieces  # a source that sends one piece a step needs 60


def calls_of_an_event(peers: int) -> int:
    """Returns the calls of functions for a piece that came, and the next orders, where all peers have all pieces."""
    names, count = [f"p{number}" for number in range(peers)], 0
    swarm = Swarm([1] * 400, dict.fromkeys(names, False), Limits(in_flight=8), random.Random(1), 0.0)
    swarm.orders(0.0)
    for name in names:
        swarm.told(name, 0.1, range(400))
    asked = [order for order in swarm.orders(0.1) if isinstance(order, Bring)]
    assert len(asked) == 8

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        swarm.came(asked[0].peer, asked[0].piece, 0.2)
        orders = swarm.orders(0.2)
    finally:
        sys.setprofile(None)
    assert [type(order) for order in orders] == [Bring]
    return count


def test_an_event_costs_the_same_for_few_and_for_many_peers() -> None:
    assert calls_of_an_event(1024) < 1.5 * calls_of_an_event(16)


def test_pieces_that_came_take_no_memory_for_long() -> None:
    swarm = Swarm([1] * 2000, {"source": False, "other": False}, Limits(in_flight=9999), random.Random(1), 0.0)
    swarm.orders(0.0)
    swarm.told("source", 0.1, range(2000))
    swarm.told("other", 0.1, range(2000))
    for piece in range(1990):
        swarm.came("source", piece, 0.2)
    swarm.told("other", 0.3, ())
    assert [*swarm._crowd.all["other"].has] == list(range(1990, 2000))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))), st.integers(0, 12))
def test_a_bag_is_a_set(steps: list[tuple[bool, int]], most: int) -> None:
    bag, known = Bag(), set[int]()
    for adds, number in steps:
        assert (bag.add(number) if adds else bag.discard(number)) == ((number in known) != adds)
        (known.add if adds else known.discard)(number)
        assert {*bag} == known and len(bag) == len(known) and (number in bag) == adds
    some = bag.some(most, random.Random(0))
    assert len({*some}) == len(some) == min(most, len(known)) or most >= len(known) == len(some)
    assert {*some} <= known
