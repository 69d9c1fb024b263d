"""A relay: the coordinator meets it as one node, and it has nodes of its own. gcr has no relays: this is a proposal.

It passes orders on, and says one word once all of its nodes have said it. Failures below it are not simulated.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from cluster_simulation.assumptions import Cost
from cluster_simulation.clock import Action, Clock
from cluster_simulation.node import NodeOrder
from gcr.cluster.messages import Begin, Came, Done, Event, Go

SendOrder = Callable[[NodeOrder], None]


class Relay:
    """Works as slowly as the coordinator, one message after another."""

    def __init__(self, name: str, clock: Clock, cost: Cost, tell: Callable[[Event], None]) -> None:
        self.name = name
        self._clock, self._cost, self._tell = clock, cost, tell
        self._nodes: dict[str, SendOrder] = {}
        self._said: Counter[str] = Counter()
        self._heard: set[tuple[str, str]] = set()
        self._line: deque[tuple[float, Action]] = deque()
        self._working = False

    def add(self, name: str, send: SendOrder) -> None:
        self._nodes[name] = send

    def obey(self, order: NodeOrder) -> None:
        if not isinstance(order, Begin | Go):
            raise NotImplementedError("failures below a relay are not simulated")
        self._queue(self._cost.word, lambda: None)
        for name, send in self._nodes.items():
            self._queue(self._cost.order, partial(send, replace(order, node=name)))

    def hear(self, event: Event) -> None:
        self._queue(self._cost.word, partial(self._heard_of, event))

    def _heard_of(self, event: Event) -> None:
        if not isinstance(event, Came | Done):
            raise NotImplementedError("failures below a relay are not simulated")
        word = event.barrier.value if isinstance(event, Came) else "done"
        if (event.node, word) in self._heard:
            return
        self._heard.add((event.node, word))
        self._said[word] += 1
        if self._said[word] == len(self._nodes):
            self._queue(self._cost.order, partial(self._tell, replace(event, node=self.name)))

    def _queue(self, takes: float, action: Action) -> None:
        self._line.append((takes, action))
        if not self._working:
            self._next()

    def _next(self) -> None:
        self._working = bool(self._line)
        if self._line:
            takes, action = self._line.popleft()
            self._clock.after(takes, lambda: self._end(action))

    def _end(self, action: Action) -> None:
        action()
        self._next()


def groups(names: list[str], number: int) -> list[list[str]]:
    """Returns the names in so many groups of nearly the same size."""
    return [names[start::number] for start in range(number)]
