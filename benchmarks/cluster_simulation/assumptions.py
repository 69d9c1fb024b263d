"""Assumptions of the simulation about nodes, links and the coordinator. Times are seconds.

The medians come from two ranks on two H100s (run 34 of docs/benchmarks.md), unless a comment names another source.
"""

from math import exp
from random import Random

from msgspec import Struct


class Spread(Struct, frozen=True):
    """A lognormal distribution. `sigma`: the standard deviation of the logarithm."""

    median: float
    sigma: float = 0.0

    def draw(self, chance: Random) -> float:
        return self.median * exp(self.sigma * chance.gauss(0.0, 1.0)) if self.sigma else self.median


class Part(Struct, frozen=True):
    """A node's own work."""

    # `sharing-heartbeat`: 1.257 s until device memory was free, less a stop of 0.775 s. Sigma: of the 14 first
    # checkpoints ("prepared" of `smoke` and `namespace`) in benchmarks/results
    admitted: Spread = Spread(0.482, 0.33)
    # FSDP2: 23 ms, the largest of 50 was 186 ms. Sigma: ln(186 / 23) / 2.25, the mean of the largest of 50
    still: Spread = Spread(0.023, 0.93)
    # `sharing-heartbeat`: the stop. Sigma: from the standstill on, of the 36 checkpoints of `image-full`
    suspended: Spread = Spread(0.775, 0.20)
    restored: Spread = Spread(0.637, 0.20)  # `sharing-heartbeat`: back
    taken_back: Spread = Spread(0.005)  # assumed: gates open, nothing was handed over
    successor: float = 1.0  # assumed: from the death of a daemon until the next one answers


class Link(Struct, frozen=True):
    """One way of a message, without the coordinator's own work. All assumed."""

    latency: Spread = Spread(0.0002, 0.5)
    thin_share: float = 0.01  # of nodes that are far away
    thin: float = 0.05  # their latency


class Faults(Struct, frozen=True):
    """straggler_share: of nodes, slower in all by a factor of Pareto's distribution: at least `least`, tail `tail`

    deaths: per node and hour · silent_share: of deaths that close no connection
    """

    straggler_share: float = 0.0
    least: float = 2.0
    tail: float = 2.0
    deaths: float = 0.0
    silent_share: float = 0.5

    def slowness(self, chance: Random) -> float:
        if chance.random() >= self.straggler_share:
            return 1.0
        return self.least * chance.paretovariate(self.tail)


class Cost(Struct, frozen=True):
    """The coordinator's own work, one message after another: for a word that comes, for an order that goes."""

    word: float = 0.0
    order: float = 0.0


class Limits(Struct, frozen=True):
    """Those of gcr: `cut_s` and `quiesce_s` of the settings, the rest as in core/gcr."""

    cut: float = 10.0
    quiesce: float = 10.0
    timeout: float = 300.0  # cluster/calls.py, DEFAULT_TIMEOUT
    grace: float = 30.0  # cluster/running.py, GRACE_S
    answers: float = 30.0  # cluster/running.py, ANSWERS_S
    told_again: float = 1.0  # engine/part.py, TELL_AGAIN_S
    most_pause: float = 8.0  # engine/part.py, MOST_PAUSE_S


class Assumptions(Struct, frozen=True):
    """told_again_grows: each pause before a word is told again is so many times the one before, 2 in engine/part.py"""

    nodes: int
    part: Part = Part()
    link: Link = Link()
    faults: Faults = Faults()
    cost: Cost = Cost()
    limits: Limits = Limits()
    told_again_grows: float = 2.0
    relays: int = 0
