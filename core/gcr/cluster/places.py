"""The coordinator's books: where each node is, and which orders are due."""

from collections import Counter
from collections.abc import Sequence
from typing import Self

from msgspec import Struct, field

from gcr.cluster.messages import AWAY, BUSY, Deadline, Order, Place, Wait


class Places(Struct):
    """The place of each node, by name. It counts them, since there may be very many.

    cuts: those that suspended and stopped parts are of · tries: restores of each node's part so far
    before: places in which the task found nodes that it began to bring back
    """

    by_node: dict[str, Place]
    cuts: dict[str, str] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    before: dict[str, Place] = field(default_factory=dict)
    _count: Counter[Place] = field(default_factory=Counter)

    @classmethod
    def of(cls, nodes: Sequence[str]) -> Self:
        return cls(dict.fromkeys(nodes, Place.UNASKED), _count=Counter({Place.UNASKED: len(nodes)}))

    def move(self, node: str, place: Place) -> None:
        self._count[self.by_node[node]] -= 1
        self._count[place] += 1
        self.by_node[node] = place

    def count(self, place: Place) -> int:
        return self._count[place]

    def all(self, *places: Place) -> bool:
        """Returns whether every node is at one of these places."""
        return sum(self._count[place] for place in places) == len(self.by_node)

    def at(self, *places: Place) -> list[str]:
        return [node for node, at in self.by_node.items() if at in places]

    @property
    def busy(self) -> bool:
        """Returns whether a node has yet to come to rest."""
        return any(self._count[place] for place in BUSY)

    def may_be_one_cut(self) -> bool:
        """Returns whether no node is known to be elsewhere than suspended or stopped, all by one cut or all by none."""
        cuts = {self.cuts.get(node) for node in self.at(*AWAY)}
        return self.all(*AWAY, Place.SILENT) and len(cuts) <= 1


class Orders(Struct):
    """Orders that are due, and the number of the wait under way."""

    wait: int = 0
    _due: list[Order] = field(default_factory=list)

    def add(self, *orders: Order) -> None:
        self._due += orders

    def wait_for(self, wait: Wait) -> None:
        """Begins a wait, with a deadline of its own; the one before is over."""
        self.wait += 1
        self._due.append(Deadline(self.wait, wait))

    def taken(self) -> list[Order]:
        due, self._due = self._due, []
        return due
