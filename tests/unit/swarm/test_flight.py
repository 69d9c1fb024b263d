"""The requests in flight fill a link whose round trip is long, and stay within their limits."""

import random
from heapq import heappop, heappush
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.swarm.flight import Flight
from gcr.swarm.peer import Limits
from gcr.swarm.swarm import Bring, Look, Swarm

PIECE = 1 << 20


class Link:
    """One receiver, and peers with all pieces behind one link. `most`: pieces that were in flight at once."""

    def __init__(self, peers: int, rate: float, trip: float, limits: Limits, pieces: int = 800) -> None:
        names = [f"p{number}" for number in range(peers)]
        self.swarm = Swarm([PIECE] * pieces, dict.fromkeys(names, False), limits, random.Random(1), 0.0)
        self.rate, self.trip, self.pieces = rate, trip, pieces
        self.now, self.free_at, self.most = 0.0, 0.0, 0
        self.events: list[tuple[float, str, int]] = []
        self.told: set[str] = set()

    def run(self) -> float:
        """Returns the seconds until all pieces are here."""
        while not self.swarm.is_done():
            for order in self.swarm.orders(self.now):
                match order:
                    case Look(peer):
                        heappush(self.events, (self.now + self.trip, peer, -1))
                    case Bring(peer, piece):
                        self.free_at = max(self.free_at, self.now + self.trip / 2) + PIECE / self.rate
                        heappush(self.events, (self.free_at + self.trip / 2, peer, piece))
            self.most = max(self.most, sum(map(len, self.swarm.asked().values())))
            self.now = min(self.swarm.next_at(self.now), self.events[0][0] if self.events else inf)
            while self.events and self.events[0][0] <= self.now:
                self.happen(*heappop(self.events)[1:])
        return self.now

    def happen(self, peer: str, piece: int) -> None:
        if piece >= 0:
            self.swarm.came(peer, piece, self.now)
            return
        self.swarm.told(peer, self.now, () if peer in self.told else range(self.pieces))
        self.told.add(peer)


@pytest.mark.parametrize("peers", [1, 3, 16])
def test_a_link_with_a_long_round_trip_is_filled(peers: int) -> None:
    """The link carries 20 pieces in a round trip."""
    link = Link(peers, rate=400 * PIECE, trip=0.05, limits=Limits())
    assert link.run() < 1.3 * 2.0  # the link carries all pieces in 2 s
    assert 20 < link.most <= Limits().most


@pytest.mark.parametrize(("peers", "most"), [(1, 8), (3, 6), (16, 16)])
def test_a_short_round_trip_asks_for_no_more_than_before(peers: int, most: int) -> None:
    link = Link(peers, rate=400 * PIECE, trip=0.0005, limits=Limits())
    link.run()
    assert link.most == most


def test_the_memory_of_all_requests_is_bounded() -> None:
    link = Link(2, rate=1e5 * PIECE, trip=1.0, limits=Limits(in_flight=12 * PIECE), pieces=100)
    link.run()
    assert link.most == 12


def test_each_of_many_peers_is_asked_for_a_piece() -> None:
    link = Link(100, rate=400 * PIECE, trip=0.0005, limits=Limits(looks=1000.0))
    link.run()
    assert link.most == 100


@given(st.integers(0, 2000), st.integers(0, 1000))
def test_a_peer_has_a_request_and_all_have_few(peers: int, wanted: int) -> None:
    limits = Limits()
    each = limits.at_one_of(peers, wanted)
    assert 1 <= each <= limits.at_one
    assert each == 1 or each * peers < limits.most + peers
    assert each * max(peers, 1) >= min(wanted, limits.most, limits.at_one)
    assert each <= limits.at_one_of(peers, wanted + 1)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.001, 10.0)), min_size=1),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 5.0))),
)
def test_what_is_wanted_lies_between_the_rates_that_were_seen(
    came: list[tuple[int, float]], trips: list[tuple[str, float]]
) -> None:
    """Twice the rate, times the mean of the peers' least round trips."""
    flight, rates = Flight(), list[float]()
    assert flight.bytes == 0
    for size, seconds in came:
        flight.came(size, flight.came_bytes, seconds)
        rates.append(size / seconds)
    least = dict[str, float]()
    for peer, trip in trips:
        flight.looks(peer, 1.0)
        flight.answered(peer, 1.0 + trip)
        least[peer] = min(trip, least.get(peer, inf))
    mean = sum(least.values()) / max(1, len(least))
    assert 0.999 * min(rates) * 2 * mean <= flight.bytes + 1e-6
    assert flight.bytes <= 1.001 * max(rates) * 2 * mean + 1e-6
