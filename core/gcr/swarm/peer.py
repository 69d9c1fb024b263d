"""A peer as the swarm knows it: the pieces it has, those it was asked for, and whether it is worth asking."""

from collections.abc import Container

from msgspec import Struct, field

from gcr.swarm.bag import Bag


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one receiver. Sizes are bytes, times seconds.

    at_one: requests in flight at one peer at most · requests, most: so many at all peers where the round trip is
    short, and at most where it is long; but one at each peer that can be asked · in_flight: bytes that were asked for
    and are not here, of all peers; one piece may always be · look: between two looks at the pieces of a peer ·
    looks: so many a second at all peers · late: a piece that takes longer, and longer than four times the mean, is
    asked of a second peer, too · rest, most_rest: a peer that failed is left alone for so long, twice as long after
    each further failure · stuck: the receiver gives up if nothing came for so long
    """

    at_one: int = 32
    requests: int = 8
    most: int = 64
    in_flight: int = 512 << 20
    look: float = 0.3
    looks: float = 30.0
    late: float = 3.0
    rest: float = 0.5
    most_rest: float = 15.0
    stuck: float = 60.0

    def at_one_of(self, peers: int, wanted: int) -> int:
        """Returns how many requests each of so many peers may have; with more, pieces come late and all at once.

        wanted: requests at all peers that keep the link busy
        """
        few, peers = min(wanted, self.most), max(peers, 1)
        return max(1, min(self.at_one, max(self.requests // peers, -(-few // peers))))


class Peer(Struct):
    """A peer. Times are those of the events.

    last: asked only for pieces that no other peer has, or sends · has: the missing pieces that it has, and some that
    came since · asked: pieces that it was asked for, with the time · growing: it may have more pieces later · heard: it
    has answered the last look
    stale: the answer to the look under way is not to be used
    """

    name: str
    last: bool
    has: Bag = field(default_factory=Bag)
    asked: dict[int, float] = field(default_factory=dict)
    growing: bool = False
    heard: bool = False
    looking: bool = False
    stale: bool = False
    look_at: float = 0.0
    rest_until: float = 0.0
    failures: int = 0
    distrusted: bool = False

    def is_due(self, now: float) -> bool:
        """Returns whether it is time to look at its pieces."""
        return not self.looking and not self.distrusted and self.look_at <= now

    def is_out(self, missing: Container[int]) -> bool:
        """Returns whether it has none of the missing pieces, and will have none."""
        if self.distrusted:
            return True
        return self.heard and not self.growing and not any(piece in missing for piece in self.has)

    def rest(self, now: float, limits: Limits) -> None:
        """Leaves the peer alone for a while."""
        pause = min(limits.rest * 2**self.failures, limits.most_rest)
        self.failures = min(self.failures + 1, 30)
        self.rest_until = self.look_at = now + pause
