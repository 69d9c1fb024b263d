"""The way between the coordinator and a node: late, in order, and counted."""

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from msgspec import Struct

from cluster_simulation.assumptions import Link, Spread
from cluster_simulation.clock import Clock

M = TypeVar("M")


class Tally(Struct):
    """Messages of all ways."""

    sent: int = 0
    arrived: int = 0


class Way(Generic[M]):
    """One direction. Messages arrive in the order in which they were sent."""

    def __init__(self, clock: Clock, chance: Random, latency: Spread, tally: Tally, to: Callable[[M], None]) -> None:
        self._clock, self._chance, self._latency, self._tally, self._to = clock, chance, latency, tally, to
        self._last = 0.0

    def send(self, message: M) -> None:
        self._tally.sent += 1
        self._last = max(self._last, self._clock.now + self._latency.draw(self._chance))
        self._clock.at(self._last, lambda: self._arrive(message))

    def _arrive(self, message: M) -> None:
        self._tally.arrived += 1
        self._to(message)


def latency_of(link: Link, chance: Random) -> Spread:
    """Returns that of one node, which is near or far."""
    return Spread(link.thin, link.latency.sigma) if chance.random() < link.thin_share else link.latency
