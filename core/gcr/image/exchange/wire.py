"""The messages between nodes: HTTP/1.1, with the token of the exchange as a bearer token in each request.

    GET  /1/mark                          the mark of the store: whether it is encrypted, and with which key's check
    GET  /1/images/NAME.json|chunks|hashes|cut|ahead1|ahead2…
                                          a small file of an image, as it is stored; `cut`: gcr.cutroot, `ahead1`:
                                          gcr.image.files.ahead.
                                          With `Prefer: wait=SECONDS` (RFC 7240) the answer waits for it
    POST /1/look                          a Look, answered by a Told: what the node has of some packs
    GET  /1/packs/ID                      bytes of a pack as they are stored: `Range: bytes=…`, `If-Match: "SEAL"`

An answer is 200, or 206 with the bytes of the range; 404 where there is nothing of that kind; 503 where the node sends
too much already. A request without the token gets 401 and nothing else. Names of packs are hexadecimal, as are seals.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from gcr.converting import convert
from gcr.image.exchange.notes import Run

VERSION = 1
PORT = 7443
MARK, LOOK, IMAGES, PACKS = f"/{VERSION}/mark", f"/{VERSION}/look", f"/{VERSION}/images/", f"/{VERSION}/packs/"
MOST_PACKS = 64  # in one Look
MOST_RUNS = 4096  # of one pack in one Told
MOST_LOOK = 64 << 10  # bytes
MOST_TOLD = 16 << 20
MOST_MARK = 4096
MOST_WAIT_S = 10  # for a file that is not there yet
_WAIT = re.compile(r"wait=([0-9]{1,4}(?:\.[0-9]{1,6})?)\Z")

T = TypeVar("T")


class LookPack(Struct, frozen=True, kw_only=True):
    """A pack that is asked about.

    The fields say how much the asker knows already. life: the random number of the notes · runs: of the notes, how
    many · given: of the runs that were given to others, how many · whole: the pack is there
    """

    seal: str
    life: str = ""
    runs: int = 0
    given: int = 0
    whole: bool = False


class Look(Struct, frozen=True):
    packs: Mapping[str, LookPack]  # by id


class ToldPack(Struct, frozen=True, kw_only=True):
    """The part of a pack that a node has.

    whole: all of it · life, runs: notes of a pull that brings it, and runs that the asker does not know; from the first
    on if it knows those of other notes · given, given_at: runs that were sent since, and the number of the next
    """

    whole: bool = False
    life: str = ""
    runs: Sequence[Run] = ()
    given: Sequence[Run] = ()
    given_at: int = 0


class Told(Struct, frozen=True):
    """The packs of which the node has something, or has sent something."""

    packs: Mapping[str, ToldPack] = field(default_factory=dict)


def waiting(seconds: float) -> Mapping[str, str]:
    """Returns the header that lets the peer take so many seconds for its answer."""
    return {"Prefer": f"wait={seconds:.3f}"}


def wait_of(prefer: str) -> float:
    """Returns the seconds that an answer may take, by the header `prefer`; 0 for none."""
    found = _WAIT.match(prefer)
    return min(float(found[1]), MOST_WAIT_S) if found else 0.0


def packed(message: Look | Told) -> bytes:
    return msgspec.json.encode(message)


def parsed(data: bytes, kind: type[T]) -> T:
    """Raises ValueError for what is no such message."""
    return convert(msgspec.json.decode(data), kind)
