"""Slices: two programs take short turns, so that whatever drifts falls on both; and what their rates say together.

A program prints `ready` once warm. A line `NAME SECONDS` on its standard input makes one slice of work; it answers with
the operations made, the seconds they took, and the median of one. Between slices it has nothing queued, and sleeps.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stats import upper_bound

BARE, OTHER = "bare", "other"
LEAD = 1  # operations before a slice that are not counted: cold caches, another process's context on the device


@dataclass(frozen=True, slots=True)
class Slice:
    """What one turn came to. `which`: BARE or OTHER; `median_s`: of one operation, interruptions left out."""

    which: str
    operations: int
    seconds: float
    median_s: float

    @property
    def rate(self) -> float:
        """Operations a second, every interruption included."""
        return self.operations / self.seconds

    @property
    def typical_rate(self) -> float:
        return 1 / self.median_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of the loss 1 - other / bare. `scatter` is the standard deviation over pairs of processes."""

    loss: float
    at_most: float  # one-sided 95 %
    scatter: float
    pairs: int


def serve(operation: Callable[[], object]) -> None:
    """Be the program: until standard input ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        _name, seconds = line.split()
        sys.stdout.write(json.dumps(_work(operation, float(seconds))) + "\n")
        sys.stdout.flush()


def _work(operation: Callable[[], object], seconds: float) -> dict[str, float]:
    for _ in range(LEAD):
        operation()
    times = [time.perf_counter()]
    while times[-1] - times[0] < seconds:
        operation()
        times.append(time.perf_counter())
    each = [end - start for start, end in pairwise(times)]
    return {"operations": len(each), "seconds": times[-1] - times[0], "median_s": statistics.median(each)}


def turns(count: int) -> Iterator[str]:
    """Whose turn it is, `count` each: A B B A A B B A … A drift that is straight in time cancels."""
    for number in range(count):
        yield from (BARE, OTHER) if number % 2 == 0 else (OTHER, BARE)


def log_ratio(slices: Sequence[Slice], rate: Callable[[Slice], float] = lambda each: each.rate) -> float:
    """log(other / bare) of one pair of processes: the difference of their mean log rates."""
    means = {
        which: statistics.fmean(math.log(rate(each)) for each in slices if each.which == which)
        for which in (BARE, OTHER)
    }
    return means[OTHER] - means[BARE]


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """Student's t over pairs of processes: slices of one process are not independent. Needs two pairs."""
    costs = [-ratio for ratio in log_ratios]
    mean, bound = statistics.fmean(costs), upper_bound(costs)
    return Estimate(1 - math.exp(-mean), 1 - math.exp(-bound), statistics.stdev(costs), len(costs))


def parse(pair: Mapping[str, Any]) -> dict[str, list[Slice]]:
    """The slices of a pair as it lies in a result file, by name."""
    return {name: [Slice(**each) for each in slices] for name, slices in pair["slices"].items()}
