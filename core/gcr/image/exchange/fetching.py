"""The messages between a pull and its takers (takers.py, taker.py): one packet of a socket each, in JSON.

The pull says `Begin` once, then `Fetch` and `Drop`. The taker says `Ready` once, then `Moving` now and then, and
`Fetched` once for each Fetch, also for one that was dropped: until then it may write to the memory that it was given.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gcr.image.exchange.address import PeerAddress, Trust

MOST_PACKET = 256 << 10  # bytes; the kernel sends no larger ones


class Begin(Struct, frozen=True, tag=True):
    """bytes: of the shared memory · token: None for none · lines: so many connections to the first peer at once"""

    peers: Sequence[PeerAddress]
    token: str | None
    trust: Trust
    bytes: int
    lines: int = 0


class Fetch(Struct, frozen=True, tag=True):
    """A request for an answer of `size` bytes, which are to lie at `at` of the shared memory.

    number: of the request · peer: its number in Begin
    """

    number: int
    peer: int
    path: str
    headers: Mapping[str, str]
    at: int
    size: int


class Drop(Struct, frozen=True, tag=True):
    number: int


class Ready(Struct, frozen=True, tag=True):
    pass


class Moving(Struct, frozen=True, tag=True):
    """Some bytes of an answer came."""

    number: int


class Fetched(Struct, frozen=True, tag=True):
    """A request is over.

    refused: the words of NotSent, or of PeerUnusable where there is a hint; "" where all bytes came
    """

    number: int
    refused: str = ""
    hint: str | None = None


ToTaker = Begin | Fetch | Drop
FromTaker = Ready | Moving | Fetched

to_taker, from_taker = msgspec.json.Decoder(ToTaker), msgspec.json.Decoder(FromTaker)
packed = msgspec.json.encode
