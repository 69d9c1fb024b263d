"""The swarm of one receiver: it chooses which missing piece is asked of which peer next.

The caller reports events, each with the time, and then does what `orders` returns:

    told, silent             the answer to a look at a peer's pieces, or none
    moved                    some bytes of a piece
    came, failed, wrong      the outcome of a request; `came` once the piece was compared and kept
    orders                   also when nothing happened, at `next_at`

The choice:

- The rarest piece first: the one that the fewest peers have, or were given. So a source sends different pieces to
  different receivers, and these exchange them.
- Each peer has few requests in flight, and all together few bytes.
- A piece that is late is asked of a second peer as well. The peer that loses rests, as one does that failed.
- A peer that sent wrong bytes is never asked again.
- A peer that is the last resort is asked only for pieces that no other peer has.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from random import Random

from msgspec import Struct

from gcr.swarm.bag import Bag
from gcr.swarm.peer import Limits, Peer

_LOOKED_AT = 1024  # pieces of a peer among which the rarest is chosen; of more, so many at random
_FAR = 3  # the last resort is asked for a piece that is so many times as late
_PATIENCE = 4.0  # a piece is late after so many times the mean time


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
        self._sizes, self._limits, self._random = sizes, limits, random
        self._peers = {name: Peer(name, last, look_at=now) for name, last in peers.items()}
        self._missing = set(range(len(sizes)))
        self._asked: dict[int, dict[str, float]] = {}  # pieces, by peer with the time; the oldest request first
        self._holders = array("I", bytes(4 * len(sizes)))  # peers that have a piece and are no last resort
        self._given = array("I", bytes(4 * len(sizes)))  # how often peers gave it to others
        self._in_flight, self._took, self._moved_at = 0, 0.0, now
        self._drops: list[Drop] = []

    # ---- events -------------------------------------------------------------------------------------------------

    def told(self, name: str, now: float, has: Iterable[int], given: Iterable[int] = (), growing: bool = False) -> None:
        """The peer has these pieces, besides those that it told before, and gave those to others since.

        An answer to a look that began before the last `failed` counts for nothing.
        """
        peer = self._peers[name]
        peer.looking = False
        if peer.stale:
            peer.stale, peer.look_at = False, max(now, peer.rest_until)
            return
        peer.heard, peer.growing = True, growing
        pause = max(self._limits.look, len(self._peers) / self._limits.looks)
        peer.look_at = now + pause
        for piece in has:
            if piece in self._missing and peer.has.add(piece) and not peer.last:
                self._holders[piece] += 1
        for piece in given:
            self._given[piece] += 1

    def silent(self, name: str, now: float) -> None:
        """The peer has not answered a look."""
        peer = self._peers[name]
        peer.looking = False
        self._forget(peer)
        peer.rest(now, self._limits)

    def moved(self, now: float) -> None:
        """A part of a piece came. Without it, or `came`, for `stuck` seconds the receiver gives up."""
        self._moved_at = now

    def came(self, name: str, piece: int, now: float) -> bool:
        """The piece is here, compared and kept. Returns whether it was missing."""
        if piece not in self._missing:
            return False
        self._missing.remove(piece)
        self._moved_at = now
        peer, askers = self._peers[name], self._asked.get(piece, {})
        began = askers.get(name, now)
        self._took += (now - began - self._took) / 8
        peer.failures = 0
        for other, asked_at in [*askers.items()]:
            self._unask(self._peers[other], piece)
            if other != name:
                self._drops.append(Drop(other, piece))
                if asked_at < began:
                    self._peers[other].rest(now, self._limits)
        for each in self._peers.values():
            each.has.discard(piece)
        return True

    def failed(self, name: str, piece: int, now: float) -> None:
        """The peer did not send the piece, or no longer has it."""
        peer = self._peers[name]
        if piece not in peer.asked:  # it was dropped just now
            return
        self._unask(peer, piece)
        self._forget(peer)
        peer.rest(now, self._limits)

    def wrong(self, name: str, piece: int, now: float) -> None:
        """The peer sent other bytes than those of the piece."""
        peer = self._peers[name]
        self._unask(peer, piece)
        for other in [*peer.asked]:
            self._unask(peer, other)
            self._drops.append(Drop(name, other))
        self._forget(peer)
        peer.distrusted = True

    # ---- what follows -------------------------------------------------------------------------------------------

    def orders(self, now: float) -> list[Order]:
        """Returns what to do now, in order. Each order is returned once."""
        drops, self._drops = self._drops, []
        return [*drops, *self._looks(now), *self._brings(now)] if self._missing else [*drops]

    def next_at(self, now: float) -> float:
        """Returns when `orders` may return more though nothing happens meanwhile."""
        peers = [peer for peer in self._peers.values() if not peer.distrusted]
        times = [peer.look_at for peer in peers if not peer.looking]
        times += [peer.rest_until for peer in peers]
        began = [time for askers in self._asked.values() for time in askers.values()]
        times += [time + self._late * far for time in began for far in (1, _FAR)]
        times.append(self._moved_at + self._limits.stuck)
        return min((time for time in times if time > now), default=inf)

    def is_done(self) -> bool:
        return not self._missing

    def is_hopeless(self, now: float) -> bool:
        """Returns whether pieces are missing, and no peer has them or will, or nothing came for too long."""
        if not self._missing:
            return False
        if now - self._moved_at >= self._limits.stuck:
            return True
        return not self._asked and all(peer.is_out() for peer in self._peers.values())

    def missing(self) -> Sequence[int]:
        return sorted(self._missing)

    def distrusted(self) -> Sequence[str]:
        """Returns the peers that sent wrong bytes."""
        return [peer.name for peer in self._peers.values() if peer.distrusted]

    def asked(self) -> Mapping[str, Sequence[int]]:
        """Returns the requests in flight."""
        return {peer.name: [*peer.asked] for peer in self._peers.values() if peer.asked}

    # ---- the choice ---------------------------------------------------------------------------------------------

    @property
    def _late(self) -> float:
        return max(self._limits.late, _PATIENCE * self._took)

    def _looks(self, now: float) -> Iterator[Look]:
        for peer in self._peers.values():
            if peer.is_due(now):
                peer.looking = True
                yield Look(peer.name)

    def _brings(self, now: float) -> Iterator[Bring]:
        """Asks the peers in turns, those first that have not failed and have the fewest requests."""
        usable = [peer for peer in self._peers.values() if peer.is_usable(now)]
        most = self._limits.at_one_of(len(usable))
        free = [peer for peer in usable if len(peer.asked) < most]
        self._random.shuffle(free)
        free.sort(key=lambda peer: (peer.failures > 0, peer.last, peer.failures, len(peer.asked)))
        while free:
            again = []
            for peer in free:
                piece = self._chosen(peer, now)
                if piece is not None:
                    self._ask(peer, piece, now)
                    yield Bring(peer.name, piece)
                    again.append(peer)
            free = [peer for peer in again if len(peer.asked) < most]

    def _chosen(self, peer: Peer, now: float) -> int | None:
        """Returns the piece to ask of the peer; None if it has none that is to be asked, or there is no room."""
        piece = self._rarest(peer, self._is_for_last if peer.last else lambda piece: piece not in self._asked)
        if piece is None:
            piece = self._late_piece(peer, now)
        return piece if piece is not None and self._has_room(piece) else None

    def _rarest(self, peer: Peer, suits: Callable[[int], bool]) -> int | None:
        some = filter(suits, peer.has.some(_LOOKED_AT, self._random))
        return min(some, key=lambda piece: self._holders[piece] + self._given[piece], default=None)

    def _is_for_last(self, piece: int) -> bool:
        """Returns whether the last resort may be asked: every other peer fails, or has said that it lacks the piece."""
        others = (peer for peer in self._peers.values() if not peer.last)
        return piece not in self._asked and all(
            peer.distrusted or peer.failures or (peer.heard and piece not in peer.has) for peer in others
        )

    def _late_piece(self, peer: Peer, now: float) -> int | None:
        """Returns a late piece that was asked of one other peer; for the last resort one that is far too late."""
        late, most = (self._late * _FAR, 2) if peer.last else (self._late, 1)
        for piece, askers in self._asked.items():
            few = len(askers) <= most and peer.name not in askers
            if few and piece in peer.has and now >= min(askers.values()) + late:
                return piece
        return None

    def _has_room(self, piece: int) -> bool:
        return not self._in_flight or self._in_flight + self._sizes[piece] <= self._limits.in_flight

    def _ask(self, peer: Peer, piece: int, now: float) -> None:
        peer.asked[piece] = self._asked.setdefault(piece, {})[peer.name] = now
        self._in_flight += self._sizes[piece]

    def _unask(self, peer: Peer, piece: int) -> None:
        if peer.asked.pop(piece, None) is None:
            return
        self._in_flight -= self._sizes[piece]
        askers = self._asked[piece]
        del askers[peer.name]
        if not askers:
            del self._asked[piece]

    def _forget(self, peer: Peer) -> None:
        """Forgets the pieces of a peer, which must tell them again."""
        peer.heard, peer.stale = False, peer.looking
        for piece in peer.has:
            if not peer.last:
                self._holders[piece] -= 1
        peer.has = Bag()
