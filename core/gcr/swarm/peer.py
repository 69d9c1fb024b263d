"""A peer as the swarm knows it: the pieces it has, those it was asked for, and whether it is worth asking."""

from msgspec import Struct, field

from gcr.swarm.bag import Bag


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one receiver. Sizes are bytes, times seconds.

    at_one: requests in flight at one peer · in_flight: bytes that were asked for and are not here, of all peers; one
    piece may always be · look: between two looks at the pieces of a peer · looks: so many a second at all peers ·
    late: a piece that takes longer, and longer than four times the mean, is asked of a second peer, too · rest,
    most_rest: a peer that failed is left alone for so long, twice as long after each further failure · stuck: the
    receiver gives up if nothing came for so long
    """

    at_one: int = 2
    in_flight: int = 64 << 20
    look: float = 0.2
    looks: float = 40.0
    late: float = 3.0
    rest: float = 0.5
    most_rest: float = 15.0
    stuck: float = 60.0


class Peer(Struct):
    """A peer. Times are those of the events.

    last: asked only for pieces that no other peer has · has: the missing pieces that it has · asked: pieces that it was
    asked for, with the time · growing: it may have more pieces later · heard: it has answered the last look
    """

    name: str
    last: bool
    has: Bag = field(default_factory=Bag)
    asked: dict[int, float] = field(default_factory=dict)
    growing: bool = False
    heard: bool = False
    looking: bool = False
    look_at: float = 0.0
    rest_until: float = 0.0
    failures: int = 0
    distrusted: bool = False

    def is_usable(self, now: float) -> bool:
        return self.heard and not self.distrusted and self.rest_until <= now

    def has_slot(self, limits: Limits) -> bool:
        return len(self.asked) < limits.at_one

    def is_due(self, now: float) -> bool:
        """Returns whether it is time to look at its pieces."""
        return not self.looking and not self.distrusted and self.look_at <= now

    def is_out(self) -> bool:
        """Returns whether it has none of the missing pieces, and will have none."""
        return self.distrusted or (self.heard and not self.growing and not self.has)

    def rest(self, now: float, limits: Limits) -> None:
        """Leaves the peer alone for a while."""
        pause = min(limits.rest * 2**self.failures, limits.most_rest)
        self.failures = min(self.failures + 1, 30)
        self.rest_until = self.look_at = now + pause
