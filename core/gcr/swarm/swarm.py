"""The swarm of one receiver: it chooses which missing piece is asked of which peer next.

The caller reports events, each with the time, and then does what `orders` returns:

    told, silent             the answer to a look at a peer's pieces, or none
    moved                    some bytes of a piece
    came, failed, wrong      the outcome of a request; `came` once the piece was compared and kept
    orders                   also when nothing happened, at `next_at`

The choice:

- The rarest piece first: the one that the fewest peers have, or were given. So a source sends different pieces to
  different receivers, and these exchange them.
- Each peer has few requests in flight, and all together few bytes: more where the way is long (flight.py).
- A piece that is late is asked of a second peer as well. The peer that loses rests, as one does that failed.
- A peer that sent wrong bytes is never asked again.
- A peer that is the last resort is asked only for pieces that no other peer has.

An event and the orders after it cost the same for few and for many peers. So pieces that came stay in the bags of peers
until they are met there, and crowd.py knows which peers are worth a try.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from random import Random

from msgspec import Struct

from gcr.swarm.bag import Bag
from gcr.swarm.crowd import Crowd
from gcr.swarm.missing import Missing
from gcr.swarm.peer import Limits, Peer
from gcr.swarm.requests import Requests

_LOOKED_AT = 256  # pieces of a peer among which the rarest is chosen; of more, so many from a random place on


class Look(Struct, frozen=True):
    """Ask the peer which pieces it has. After `silent` or `failed` it must tell all of them again."""

    peer: str


class Bring(Struct, frozen=True):
    """Ask the peer for the piece."""

    peer: str
    piece: int


class Drop(Struct, frozen=True):
    """Take the request back; no event must follow for it."""

    peer: str
    piece: int


Order = Look | Bring | Drop


class Swarm:
    """Pieces are numbers from 0 on; peers are names, `peers` says which are the last resort."""

    def __init__(
        self, sizes: Sequence[int], peers: Mapping[str, bool], limits: Limits, random: Random, now: float
    ) -> None:
        """`sizes`: bytes of each piece; all are missing."""
        self._limits, self._random = limits, random
        self._missing, self._crowd = Missing(sizes), Crowd(peers, now)
        self._requests = Requests(self._missing, limits, now)
        self._moved_at = now
        self._drops: list[Drop] = []

    # ---- events -------------------------------------------------------------------------------------------------

    def told(self, name: str, now: float, has: Iterable[int], given: Iterable[int] = (), growing: bool = False) -> None:
        """The peer has these pieces, besides those that it told before, and gave those to others since.

        An answer to a look that began before the last `failed` counts for nothing.
        """
        peer = self._crowd.all[name]
        peer.looking = False
        if peer.stale:
            peer.stale, peer.look_at = False, max(now, peer.rest_until)
            self._crowd.changed(peer, now)
            return
        peer.heard, peer.growing = True, growing
        self._requests.flight.answered(name, now)
        peer.look_at = now + max(self._limits.look, len(self._crowd.all) / self._limits.looks)
        left = self._missing.left
        for piece in has:
            if piece in left and peer.has.add(piece) and not peer.last:
                self._missing.hold(piece)
        if len(peer.has) > 2 * len(left) + _LOOKED_AT:  # those that came would take the more memory, the more there are
            peer.has = Bag(piece for piece in peer.has if piece in left)
        self._missing.give(given)
        self._crowd.changed(peer, now)
        self._crowd.renew_last(now)

    def silent(self, name: str, now: float) -> None:
        """The peer has not answered a look."""
        peer = self._crowd.all[name]
        peer.looking = False
        self._forget(peer, now)
        self._rest(peer, now)

    def moved(self, now: float) -> None:
        """A part of a piece came. Without it, or `came`, for `stuck` seconds the receiver gives up."""
        self._moved_at = now

    def came(self, name: str, piece: int, now: float) -> bool:
        """The piece is here, compared and kept. Returns whether it was missing."""
        if piece not in self._missing.left:
            return False
        self._missing.came(piece)
        self._moved_at = now
        peer, askers = self._crowd.all[name], self._requests.by_piece.get(piece, {})
        began = askers.get(name, now)
        self._requests.took(name, piece, now - began)
        peer.failures = 0
        for other, asked_at in [*askers.items()]:
            self._unask(self._crowd.all[other], piece, now)
            if other != name:
                self._drops.append(Drop(other, piece))
                if asked_at < began:
                    self._rest(self._crowd.all[other], now)
        self._crowd.changed(peer, now)
        return True

    def failed(self, name: str, piece: int, now: float) -> None:
        """The peer did not send the piece, or no longer has it."""
        peer = self._crowd.all[name]
        if piece not in peer.asked:  # it was dropped just now
            return
        self._unask(peer, piece, now)
        self._forget(peer, now)
        self._rest(peer, now)

    def wrong(self, name: str, piece: int, now: float) -> None:
        """The peer sent other bytes than those of the piece."""
        peer = self._crowd.all[name]
        self._unask(peer, piece, now)
        for other in [*peer.asked]:
            self._unask(peer, other, now)
            self._drops.append(Drop(name, other))
        peer.distrusted = True
        self._forget(peer, now)

    # ---- what follows -------------------------------------------------------------------------------------------

    def orders(self, now: float) -> list[Order]:
        """Returns what to do now, in order. Each order is returned once."""
        drops, self._drops = self._drops, []
        if not self._missing.left:
            return [*drops]
        return [*drops, *self._looks(now), *self._brings(now)]

    def next_at(self, now: float) -> float:
        """Returns when `orders` may return more though nothing happens meanwhile."""
        times = (*self._crowd.wakes(), *self._requests.wakes(), self._moved_at + self._limits.stuck)
        return min((time for time in times if time > now), default=inf)

    def is_done(self) -> bool:
        return not self._missing.left

    def is_hopeless(self, now: float) -> bool:
        """Returns whether pieces are missing, and no peer has them or will, or nothing came for too long."""
        if not self._missing.left:
            return False
        if now - self._moved_at >= self._limits.stuck:
            return True
        return not self._requests.by_piece and all(peer.is_out(self._missing.left) for peer in self._crowd.all.values())

    def missing(self) -> Sequence[int]:
        return sorted(self._missing.left)

    def distrusted(self) -> Sequence[str]:
        """Returns the peers that sent wrong bytes."""
        return [peer.name for peer in self._crowd.all.values() if peer.distrusted]

    def asked(self) -> Mapping[str, Sequence[int]]:
        """Returns the requests in flight."""
        return {peer.name: [*peer.asked] for peer in self._crowd.all.values() if peer.asked}

    # ---- the choice ---------------------------------------------------------------------------------------------

    def _looks(self, now: float) -> Iterator[Look]:
        for peer in self._crowd.due(now):
            self._requests.flight.looks(peer.name, now)
            yield Look(peer.name)

    def _brings(self, now: float) -> Iterator[Bring]:
        """Asks promising peers, those first that have not failed, until there is no room or none has a piece."""
        self._crowd.begin(now, self._limits, self._requests.wanted)
        late = self._requests.late(now)
        if late:
            self._crowd.renew(now)
        while not self._requests.is_full() and (peer := self._crowd.next(self._random)):
            piece = self._for_last(peer) if peer.last else self._rarest(peer, self._is_free)
            if piece is None:
                piece = self._requests.late_of(peer, now, late)
            if piece is None:
                self._crowd.barren(peer)
            elif self._requests.has_room(piece):
                self._requests.begin(peer, piece, now)
                yield Bring(peer.name, piece)
            else:
                return

    def _rarest(self, peer: Peer, suits: Callable[[int], bool]) -> int | None:
        """Returns the rarest of some pieces of the peer that are missing and suit; None where no piece of it does."""
        left, rarity = self._missing.left, self._missing.rarity
        while peer.has:
            some = peer.has.some(_LOOKED_AT, self._random)
            there = [piece for piece in some if piece in left]
            best = min(filter(suits, there), key=rarity, default=None)
            if len(there) < len(some):
                for piece in {*some}.difference(there):
                    peer.has.discard(piece)
            elif best is None:
                return next((piece for piece in peer.has if piece in left and suits(piece)), None)
            if best is not None:
                return best
        return None

    def _is_free(self, piece: int) -> bool:
        return piece not in self._requests.by_piece

    def _for_last(self, peer: Peer) -> int | None:
        """Returns a piece for which the last resort may be asked.

        Every other peer fails, or has said that it lacks the piece.
        """
        if not self._crowd.all_heard:
            return None
        some = self._missing.unheld.some(_LOOKED_AT, self._random)
        found = [piece for piece in some if piece in peer.has and self._is_free(piece)]
        if found:
            return min(found, key=self._missing.rarity)
        if self._crowd.some_fail:  # what only these have is not unheld
            sound = self._crowd.sound()
            return self._rarest(peer, lambda piece: self._is_free(piece) and not any(piece in o.has for o in sound))
        return next((piece for piece in self._missing.unheld if piece in peer.has and self._is_free(piece)), None)

    def _unask(self, peer: Peer, piece: int, now: float) -> None:
        if self._requests.end(peer, piece):
            self._crowd.changed(peer, now)

    def _rest(self, peer: Peer, now: float) -> None:
        peer.rest(now, self._limits)
        self._crowd.changed(peer, now)

    def _forget(self, peer: Peer, now: float) -> None:
        """Forgets the pieces of a peer, which must tell them again. Others may be asked for them."""
        peer.heard, peer.stale = False, peer.looking
        if not peer.last:
            for piece in peer.has:
                self._missing.release(piece)
        peer.has = Bag()
        self._crowd.changed(peer, now)
        self._crowd.renew(now)
