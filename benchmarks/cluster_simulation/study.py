"""Cuts of many sizes under many assumptions: `study` names each series."""

from collections.abc import Iterator
from math import isqrt
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from cluster_simulation.assumptions import Assumptions, Cost, Faults, Limits, Link
from cluster_simulation.coordinator import OVER
from cluster_simulation.world import Found, is_whole, simulated
from gcr.cluster.messages import Outcome, Wait

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
# Seconds a message. About as measured (`cost` in the results): the decisions alone, and with the threads of
# gcr.cluster.running. The last is assumed
COSTS = {"5us": 5e-6, "100us": 1e-4, "1ms": 1e-3}
SHARES = (0.0, 0.001, 0.01, 0.1)
DROWNED = 3000  # above that no cut is simulated in which told-again words come faster than they are taken
CUT_S = (0.5, 1.0, 2.0, 5.0, 10.0)
DEATHS = (0.001, 0.01, 0.1, 1.0)


class Row(Struct, frozen=True):
    """Simulated cuts of one kind: medians, and the largest. Times are seconds.

    admitted_s, still_s: from the beginning until all were admitted, and until all stood still
    mixed: cuts after which living nodes were not all at one place · line: events that waited in line at most
    """

    series: str
    nodes: int
    x: float
    cuts: int
    outcomes: dict[str, int]
    given_up: float
    time_s: float
    time_most_s: float
    admitted_s: float
    still_s: float
    stood_s: float
    messages_a_node: float
    busy_s: float
    line: float
    deaths: float
    mixed: int


def row(series: str, x: float, assumed: Assumptions, cuts: int) -> Row:
    found = [simulated(assumed, seed) for seed in range(cuts)]
    times = sorted(each.end_s for each in found)
    outcomes = {outcome.value: sum(each.outcome is outcome for each in found) for outcome in Outcome}
    return Row(
        series=series,
        nodes=assumed.nodes,
        x=x,
        cuts=cuts,
        outcomes={name: number for name, number in outcomes.items() if number},
        given_up=1 - outcomes[Outcome.DONE.value] / cuts,
        time_s=median(times),
        time_most_s=times[-1],
        admitted_s=_reached(found, Wait.STILL),
        still_s=_reached(found, Wait.END),
        stood_s=median(each.stood_s for each in found),
        messages_a_node=median(each.messages for each in found) / assumed.nodes,
        busy_s=median(each.busy_s for each in found),
        line=median(each.longest_line for each in found),
        deaths=sum(each.deaths for each in found) / cuts,
        mixed=sum(not is_whole(each) for each in found),
    )


def _reached(found: list[Found], wait: Wait) -> float:
    """Returns when that wait began; the end where it did not."""
    return median(each.reached.get(wait.value, each.reached[OVER]) for each in found)


def few_cuts(nodes: int) -> int:
    """Returns how many cuts are simulated: fewer of the larger ones."""
    return min(10, 50_000 // nodes)


def many_cuts(nodes: int) -> int:
    return min(200, 100_000 // nodes)


def growth(name: str, cost: float, grows: float = 2.0, relays: bool = False) -> Iterator[Row]:
    for nodes in SIZES:
        assumed = Assumptions(nodes, cost=Cost(cost, cost), told_again_grows=grows)
        if not _drowns(assumed) or relays:
            yield row(name, nodes, replace(assumed, relays=isqrt(nodes) if relays else 0), few_cuts(nodes))
        elif nodes <= DROWNED:
            yield row(name, nodes, assumed, 2)


def _drowns(assumed: Assumptions) -> bool:
    """Returns whether the words that are told again are more than the coordinator can take.

    Such a cut goes on until a deadline, with millions of messages.
    """
    return assumed.told_again_grows == 1 and assumed.nodes * assumed.cost.word > assumed.limits.told_again


def stragglers(nodes: int) -> Iterator[Row]:
    for share in SHARES:
        yield row(f"stragglers, {nodes}", share, _few(nodes, Faults(straggler_share=share)), many_cuts(nodes))


def deadlines(share: float) -> Iterator[Row]:
    """A thousand nodes, for several settings of `cut_s`."""
    for cut in CUT_S:
        assumed = replace(_few(1000, Faults(straggler_share=share)), limits=Limits(cut=cut))
        yield row(f"cut_s, {share:g}", cut, assumed, 25)


def deaths(nodes: int) -> Iterator[Row]:
    for rate in DEATHS:
        yield row(f"deaths, {nodes}", rate, _few(nodes, Faults(deaths=rate)), many_cuts(nodes))


def thin() -> Iterator[Row]:
    """A thousand nodes, of which some are far away."""
    for share in (0.0, 0.01, 0.1, 1.0):
        for far in (0.05, 0.3):
            assumed = replace(_few(1000, Faults()), link=Link(thin_share=share, thin=far))
            yield row(f"thin, {far:g}", share, assumed, 10)


def _few(nodes: int, faults: Faults) -> Assumptions:
    """Returns assumptions under which the coordinator's own work hardly counts."""
    cost = COSTS["5us"]
    return Assumptions(nodes, faults=faults, cost=Cost(cost, cost))


def study() -> dict[str, Iterator[Row]]:
    """Returns each series by name; nothing of it is run yet."""
    found = {}
    for name, cost in COSTS.items():
        found[f"growth, {name}"] = growth(f"growth, {name}", cost)
        found[f"each second, {name}"] = growth(f"each second, {name}", cost, grows=1.0)
        found[f"relays, {name}"] = growth(f"relays, {name}", cost, relays=True)
    for nodes in (100, 1000, 10_000):
        found[f"stragglers, {nodes}"] = stragglers(nodes)
        found[f"deaths, {nodes}"] = deaths(nodes)
    for share in (0.0, 0.01, 0.1):
        found[f"cut_s, {share:g}"] = deadlines(share)
    return {**found, "thin": thin()}
