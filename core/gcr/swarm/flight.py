"""The requests that a way takes up: as many as keep a link busy while an answer is still on its way.

A receiver that asks for B bytes, and for the next ones once they are here, gets B a round trip at most. So the bytes in
flight follow the rate at which bytes came, times the round trip. The rate itself grows with them until the link is
full: twice that product is asked for, so a link that idles is filled within a few round trips. The round trip is the
one of looks, which are small; that of a piece would count the line that the pieces wait in.
"""

from math import ceil

_GAIN = 2.0  # of the bytes that were on the way: a share below 1 more would never find a faster link
_SLOWER = 1 / 16  # so much of a lower rate is believed at once, and all of a higher one


class Flight:
    """Measures one receiver's way. Sizes are bytes, times seconds."""

    def __init__(self) -> None:
        self.came_bytes = 0
        self._rate = 0.0
        self._looked_at: dict[str, float] = {}
        self._trips: dict[str, float] = {}  # the least round trip of each peer
        self._all_trips = 0.0

    def came(self, size: int, before: int, seconds: float) -> None:
        """Notes a piece that took so many seconds; `before`: `came_bytes` when it was asked for."""
        self.came_bytes += size
        if seconds > 0:
            rate = (self.came_bytes - before) / seconds
            self._rate = rate if rate > self._rate else self._rate + (rate - self._rate) * _SLOWER

    def looks(self, name: str, now: float) -> None:
        """Notes that a peer is looked at."""
        self._looked_at[name] = now

    def answered(self, name: str, now: float) -> None:
        """Notes that a peer has answered a look."""
        seconds, least = now - self._looked_at[name], self._trips.get(name)
        if least is None or seconds < least:
            self._trips[name] = seconds
            self._all_trips += seconds - (least or 0.0)

    @property
    def bytes(self) -> float:
        """Returns the bytes to have in flight; 0 before something is known."""
        return _GAIN * self._rate * self._all_trips / len(self._trips) if self._trips else 0.0

    def requests(self, piece: int) -> int:
        """Returns the requests for pieces of so many bytes that are to be in flight."""
        return ceil(self.bytes / piece)
