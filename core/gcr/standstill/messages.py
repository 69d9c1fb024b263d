"""The words of a standstill: what a rank's agent reports of it, and which of its calls are admitted.

A rank is a process of the job, by a number that is its own among all ranks that are decided on together.
"""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Signature = Annotated[int, Meta(ge=0)]

LOCAL = 0  # the signature of every call that is not known as coupled


class Tier(IntEnum):
    HELPER = 0
    PARTNER = 1
    WALK = 2
    LEAD = 3
    SPIN = 4


COUPLING = (Tier.PARTNER, Tier.LEAD)


class Parked(Struct, frozen=True):
    """A thread that waits at its rank's gate, and the call that it waits with.

    clear: nothing is unfinished on the stream of that call · launched: calls of that signature by its rank so far.
    """

    thread: int
    signature: int = LOCAL
    clear: bool = True
    helper: bool = False
    launched: int = 0


class Incomplete(Struct, frozen=True):
    """The latest coupled launch of a signature, on a stream that is not idle. `launched`: of that signature, so far."""

    signature: int
    stream: int
    launched: int
    kernel: str = ""


class Made(Struct, frozen=True):
    """A signature of which a rank has made calls. `thread`: that made them all; None where several did."""

    signature: int
    launched: int
    thread: int | None


class Report(Struct, frozen=True):
    """The answer of one rank's agent to look number `look`.

    changed_at: when its device, its gate or its calls in flight last changed, on the caller's clock · held: threads
    that would begin a capture, and wait because captures are held.
    """

    rank: int
    look: int
    busy: bool
    in_flight: int
    captures: int
    changed_at: float
    parked: tuple[Parked, ...] = ()
    incomplete: tuple[Incomplete, ...] = ()
    held: int = 0
    made: tuple[Made, ...] = ()

    @property
    def at_rest(self) -> bool:
        return not (self.busy or self.in_flight or self.captures)

    @property
    def in_own_code(self) -> bool:
        """Tells whether nothing of the rank is at its gate, in its driver or on its device."""
        return self.at_rest and not self.parked and not self.held


class Admission(Struct, frozen=True):
    """One thread of one rank may make `calls` calls at most.

    A WALK stops before a coupled call that is not allowed. Behind its first call a PARTNER or LEAD goes on only while
    the thread owes a call; a LEAD that `leads` also through coupled calls that are not allowed.
    """

    tier: Tier
    rank: int
    thread: Count
    signature: Signature
    calls: Count = 1
    leads: bool = False


class Lead(Struct, frozen=True):
    """An order to all ranks of one node: their gates are closed, or open. Closed, calls are admitted, or all look.

    furthest: pairs of a signature, and the calls of it that any rank may make, all told
    """

    closed: bool = True
    admissions: tuple[Admission, ...] = ()
    furthest: tuple[tuple[Signature, Count], ...] = ()
