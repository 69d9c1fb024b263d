"""The operations of a job's supervisor: the escrow of its processes' descriptors, and its copy of the decision.

A supervisor also stays without its program while the job is parked: an image has the processes.
"""

from typing import Generic

from msgspec import Struct

from gcr.protocol.operations.operation import A, Nothing, Operation


class OfProcess(Operation[A], Generic[A], frozen=True):
    pid: int


class Put(OfProcess[Nothing], frozen=True):
    op = "put"
    takes = "a duplicate of each handle, in the order of `ids`"

    ids: tuple[int, ...]


class Drop(OfProcess[Nothing], frozen=True):
    """`ids` None: all of the process."""

    op = "drop"

    ids: tuple[int, ...] | None


class KeptIds(Struct, frozen=True):
    ids: tuple[int, ...]


class Ids(OfProcess[KeptIds], frozen=True):
    op = "ids"


class Take(OfProcess[Nothing], frozen=True):
    op = "take"
    gives = "a duplicate of each handle, in the order of `ids`"

    ids: tuple[int, ...]


class Stage(OfProcess[Nothing], frozen=True):
    """Keeps descriptors from `offset` on, in the place of what was there and after."""

    op = "stage"
    takes = "sealed tables and segments"

    offset: int


class Unstage(OfProcess[Nothing], frozen=True):
    op = "unstage"
    gives = "staged descriptors from `offset` on, `limit` at most"

    offset: int
    limit: int


class UnstageAll(OfProcess[Nothing], frozen=True):
    op = "unstage_all"


class Forget(OfProcess[Nothing], frozen=True):
    op = "forget"


class Note(Operation[Nothing], frozen=True):
    op = "note"

    text: str


class NotedText(Struct, frozen=True):
    text: str


class Noted(Operation[NotedText], frozen=True):
    op = "noted"


class Park(Operation[Nothing], frozen=True):
    """The program is in this image, and stands still: ends it, and waits for its return. `store`: a private place's.

    stood_s: it has stood still for so many seconds at most; the image lacks signals that were sent meanwhile
    Refused where the place was withdrawn, or the program has ended.
    """

    op = "park"

    store: str
    image: str
    stood_s: float = 0.0


class Leave(Operation[Nothing], frozen=True):
    """Closes all that CRIU could not save, this connection last, and stays away while the mark is there.

    Refused without a mark (rendezvous/away.py). Once back it starts no daemon any more.
    """

    op = "leave"


class Unpark(Operation[Nothing], frozen=True):
    """Makes the processes of a parked job again. They are there, suspended, when this is answered."""

    op = "unpark"
