"""The peers of a receiver: the next one to ask is found without a look at all of them.

A peer is *promising* until it turns out to have no piece to ask for. An event that may change that makes it promising
again: it tells of more pieces, a request to it ends, its rest is over. After a failure all peers are.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from random import Random

from gcr.swarm.bag import Bag
from gcr.swarm.peer import Limits, Peer

_FEWER = 2  # a peer may have fewer requests once that is so many times less: a change costs a look at all peers
_FEW = 8  # peers among which the one with the fewest requests is looked for


class Crowd:
    """`all`: the peers, by name."""

    def __init__(self, peers: Mapping[str, bool], now: float) -> None:
        self.all = {name: Peer(name, last, look_at=now) for name, last in peers.items()}
        self._numbered, self._numbers = [*self.all.values()], {name: number for number, name in enumerate(self.all)}
        self._last = [peer for peer in self._numbered if peer.last]
        self._unheard = {number for number, peer in enumerate(self._numbered) if not peer.last}
        self._failing = set[int]()
        self._usable = set[int]()
        self._resting = set[int]()
        self._good = Bag()  # promising, never failed, no last resort
        self._others = set[int]()  # promising as well
        self._look_at, self._most = now, 0

    @property
    def all_heard(self) -> bool:
        """Returns whether each peer, but for last resorts, has said what it has, or fails."""
        return not self._unheard

    @property
    def some_fail(self) -> bool:
        """Returns whether a peer, no last resort, has failed and told what it has since."""
        return bool(self._failing)

    def sound(self) -> Sequence[Peer]:
        """Returns the peers that have told what they have, and do not fail; no last resort."""
        heard = (peer for peer in self._numbered if peer.heard and not (peer.last or peer.distrusted))
        return [peer for peer in heard if not peer.failures]

    # ---- events -------------------------------------------------------------------------------------------------

    def changed(self, peer: Peer, now: float) -> None:
        """Sorts a peer in anew, as promising."""
        number, is_ready = self._numbers[peer.name], peer.heard and not peer.distrusted
        rests = is_ready and peer.rest_until > now
        _put(self._resting, number, rests)
        _put(self._usable, number, is_ready and not rests)
        _put(self._unheard, number, not (peer.last or peer.heard or peer.failures or peer.distrusted))
        _put(self._failing, number, is_ready and peer.failures > 0 and not peer.last)
        self.barren(peer)
        if is_ready and not rests:
            if peer.last or peer.failures:
                self._others.add(number)
            else:
                self._good.add(number)
        if not (peer.looking or peer.distrusted):
            self._look_at = min(self._look_at, peer.look_at)

    def barren(self, peer: Peer) -> None:
        """The peer has no piece to ask for."""
        number = self._numbers[peer.name]
        self._good.discard(number)
        self._others.discard(number)

    def renew(self, now: float) -> None:
        """Makes all peers promising."""
        for number in [*self._usable, *self._resting]:
            self.changed(self._numbered[number], now)

    def renew_last(self, now: float) -> None:
        for peer in self._last:
            self.changed(peer, now)

    # ---- the choice ---------------------------------------------------------------------------------------------

    def due(self, now: float) -> Iterator[Peer]:
        """Yields the peers to look at, and notes that they are looked at."""
        if now < self._look_at:
            return
        for peer in self._numbered:
            if peer.is_due(now):
                peer.looking = True
                yield peer
        waiting = (peer.look_at for peer in self._numbered if not (peer.looking or peer.distrusted))
        self._look_at = min(waiting, default=inf)

    def begin(self, now: float, limits: Limits, wanted: int) -> None:
        """Prepares for `next`: rests end, and the requests that one peer may have follow the number of peers.

        wanted: see `Limits.at_one_of`
        """
        for number in [number for number in self._resting if self._numbered[number].rest_until <= now]:
            self.changed(self._numbered[number], now)
        most = limits.at_one_of(len(self._usable), wanted)
        if most > self._most:
            self.renew(now)
        if most > self._most or most <= self._most // _FEWER:
            self._most = most

    def next(self, random: Random) -> Peer | None:
        """Returns a promising peer that may be asked: one that has not failed, and no last resort, if there is one."""
        while self._good:
            some = [self._numbered[number] for number in self._good.some(_FEW, random)]
            peer = min(some, key=lambda peer: len(peer.asked))
            if len(peer.asked) < self._most:
                return peer
            for each in some:
                self.barren(each)  # until one of its requests ends
        free = [peer for number in self._others if len((peer := self._numbered[number]).asked) < self._most]
        return min(free, key=lambda peer: (peer.failures > 0, peer.last, peer.failures, len(peer.asked)), default=None)

    def wakes(self) -> Iterator[float]:
        """Yields the times at which something may be done though nothing happens."""
        yield from (self._numbered[number].rest_until for number in self._resting)
        yield from (peer.look_at for peer in self._numbered if not (peer.looking or peer.distrusted))


def _put(numbers: set[int], number: int, belongs: bool) -> None:
    if belongs:
        numbers.add(number)
    else:
        numbers.discard(number)
