"""One simulated cut over many nodes, from the first order until nothing more happens."""

from collections import Counter
from functools import partial
from random import Random

from msgspec import Struct

from cluster_simulation.assumptions import Assumptions, Faults
from cluster_simulation.clock import Action, Clock
from cluster_simulation.coordinator import OVER, Coordinator
from cluster_simulation.node import CUT, Node, NodeOrder, State, Tell
from cluster_simulation.relays import Relay, groups
from cluster_simulation.ways import Tally, Way, latency_of
from gcr.cluster.coordination import Coordination, Task
from gcr.cluster.messages import Event, Outcome

HORIZON_S = 1000.0  # no death after that: a cut and its way back have ended by then


class Found(Struct, frozen=True):
    """reached: seconds at which each wait began, and the end · stood_s: longest that a program stood still

    messages: of all nodes, both ways · states: nodes by where they are once nothing more happens
    """

    outcome: Outcome
    reached: dict[str, float]
    stood_s: float
    messages: int
    arrived: int
    events: int
    busy_s: float
    longest_line: int
    deaths: int
    states: dict[str, int]

    @property
    def end_s(self) -> float:
        return self.reached[OVER]


class World:
    def __init__(self, assumed: Assumptions, seed: int) -> None:
        self._assumed, self._chance = assumed, Random(seed)
        self.clock, self.tally, self.deaths = Clock(), Tally(), 0
        self.nodes: dict[str, Node] = {}
        self._down: dict[str, Way[NodeOrder]] = {}
        names = [f"node-{number}" for number in range(assumed.nodes)]
        heads = [f"relay-{number}" for number in range(assumed.relays)] or names
        coordination = Coordination.of(Task.CHECKPOINT, CUT, heads)
        self.coordinator = Coordinator(coordination, self.clock, assumed.cost, assumed.limits, self._order)
        if assumed.relays:
            for head, group in zip(heads, groups(names, assumed.relays), strict=True):
                self._add_relay(head, group)
        else:
            for name in names:
                self._down[name] = self._add_node(name, self.coordinator.hear)

    def run(self) -> Found:
        self._let_some_die(self._assumed.faults)
        self.coordinator.start()
        self.clock.run()
        if self.coordinator.outcome is None:
            raise AssertionError(f"it does not end: {self.coordinator.coordination.phase}")
        return self._found(self.coordinator.outcome)

    def _found(self, outcome: Outcome) -> Found:
        return Found(
            outcome,
            self.coordinator.reached,
            max(node.stood_s for node in self.nodes.values()),
            self.tally.sent,
            self.tally.arrived,
            self.coordinator.events,
            self.coordinator.busy_s,
            self.coordinator.longest,
            self.deaths,
            {state.value: number for state, number in Counter(node.state for node in self.nodes.values()).items()},
        )

    def _order(self, order: NodeOrder) -> None:
        self._down[order.node].send(order)

    def _add_node(self, name: str, hear: Tell) -> Way[NodeOrder]:
        latency = latency_of(self._assumed.link, self._chance)
        up: Way[Event] = Way(self.clock, self._chance, latency, self.tally, hear)
        node = Node(name, self.clock, self._chance, self._assumed, up.send, hear)
        self.nodes[name] = node
        return Way(self.clock, self._chance, latency, self.tally, node.hear)

    def _add_relay(self, head: str, group: list[str]) -> None:
        latency = self._assumed.link.latency
        up: Way[Event] = Way(self.clock, self._chance, latency, self.tally, self.coordinator.hear)
        relay = Relay(head, self.clock, self._assumed.cost, up.send)
        for name in group:
            relay.add(name, self._add_node(name, relay.hear).send)
        self._down[head] = Way(self.clock, self._chance, latency, self.tally, relay.obey)

    def _let_some_die(self, faults: Faults) -> None:
        if not faults.deaths:
            return
        for node in self.nodes.values():
            at = self._chance.expovariate(faults.deaths / 3600.0)
            if at < HORIZON_S:
                silent = self._chance.random() < faults.silent_share
                self.clock.at(at, partial(self._strike, node.die if silent else node.lose_daemon))

    def _strike(self, death: Action) -> None:
        """Only while the cut is under way."""
        if self.coordinator.outcome is None:
            self.deaths += 1
            death()


def simulated(assumed: Assumptions, seed: int) -> Found:
    """Runs one cut. The same seed gives the same result."""
    return World(assumed, seed).run()


def is_whole(found: Found) -> bool:
    """Returns whether all nodes that live are at the same place."""
    return len({state for state, number in found.states.items() if number and state != State.DEAD}) <= 1
