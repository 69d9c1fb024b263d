"""The requests of one receiver that are in flight, and those of them that are late."""

from collections.abc import Iterable, Iterator, Sequence

from gcr.swarm.flight import Flight
from gcr.swarm.missing import Missing
from gcr.swarm.peer import Limits, Peer

_FAR = 3  # the last resort is asked for a piece that is so many times as late
_MOST_ASKED = 2  # peers that were asked for a piece before the last resort is, too
_PATIENCE = 4.0  # a piece is late after so many times the mean time


class Requests:
    """`by_piece`: the peers that were asked for it, with the time; the oldest request first · `flight`: the way"""

    def __init__(self, missing: Missing, limits: Limits, now: float) -> None:
        self.by_piece: dict[int, dict[str, float]] = {}
        self.flight, self._before = Flight(), dict[tuple[str, int], int]()
        self._mean = max(1, sum(missing.sizes) // max(1, len(missing.sizes)))
        self._missing, self._limits = missing, limits
        self._in_flight, self._took = 0, 0.0
        self._quiet_until = now  # no piece is late before

    def begin(self, peer: Peer, piece: int, now: float) -> None:
        peer.asked[piece] = self.by_piece.setdefault(piece, {})[peer.name] = now
        self._before[peer.name, piece] = self.flight.came_bytes
        self._in_flight += self._missing.sizes[piece]

    def end(self, peer: Peer, piece: int) -> bool:
        """Returns whether the peer was asked for the piece."""
        if peer.asked.pop(piece, None) is None:
            return False
        del self._before[peer.name, piece]
        self._in_flight -= self._missing.sizes[piece]
        askers = self.by_piece[piece]
        del askers[peer.name]
        if not askers:
            del self.by_piece[piece]
        return True

    def took(self, name: str, piece: int, seconds: float) -> None:
        """Notes the time that a request took, which is not ended yet."""
        self._took += (seconds - self._took) / 8
        self.flight.came(self._missing.sizes[piece], self._before.get((name, piece), self.flight.came_bytes), seconds)

    @property
    def wanted(self) -> int:
        """Returns how many requests keep the link busy, by what is known of it."""
        return self.flight.requests(self._mean)

    # ---- room ---------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Returns whether no piece has room."""
        return bool(self._in_flight) and self._in_flight + self._missing.least > self._limits.in_flight

    def has_room(self, piece: int) -> bool:
        return not self._in_flight or self._in_flight + self._missing.sizes[piece] <= self._limits.in_flight

    # ---- lateness -----------------------------------------------------------------------------------------------

    @property
    def _late(self) -> float:
        return max(self._limits.late, _PATIENCE * self._took)

    def late(self, now: float) -> Sequence[int]:
        """Returns the pieces that are late, and were asked of few peers."""
        if now < self._quiet_until:
            return ()
        late, began = self._late, (min(askers.values()) for askers in self.by_piece.values())
        self._quiet_until = min(began, default=now) + self._limits.late
        return [
            piece
            for piece, askers in self.by_piece.items()
            if len(askers) <= _MOST_ASKED and now >= min(askers.values()) + late
        ]

    def late_of(self, peer: Peer, now: float, pieces: Iterable[int]) -> int | None:
        """Returns a late piece that was asked of one other peer; for the last resort one that is far too late."""
        late, most = (self._late * _FAR, _MOST_ASKED) if peer.last else (self._late, 1)
        for piece in pieces:
            askers = self.by_piece[piece]
            few = len(askers) <= most and peer.name not in askers
            if few and piece in peer.has and now >= min(askers.values()) + late:
                return piece
        return None

    def wakes(self) -> Iterator[float]:
        """Yields the times at which pieces become late."""
        late = self._late
        for askers in self.by_piece.values():
            for began in askers.values():
                yield from (began + late, began + late * _FAR)
