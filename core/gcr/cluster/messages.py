"""The coordinator's events, of one node each, and its orders. A node is its name."""

from enum import StrEnum

from msgspec import Struct

from gcr.api.barriers import Barrier
from gcr.standstill.messages import Lead, Report


class Place(StrEnum):
    """The place of a node, as far as the coordinator knows."""

    UNASKED = "unasked"
    ASKED = "asked"  # where its job stands
    WORKING = "working"  # its checkpoint or restore is under way
    HELD = "held"  # it waits at a barrier
    NAMED = "named"  # it waits at the last barrier, and its store has the list of all parts
    RETURNING = "returning"  # it restores its part, and waits for no other node
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPED = "stopped"  # its processes are in its part of an image alone
    AS_BEFORE = "as_before"  # it refused, so its part is where it was
    GONE = "gone"  # there is no such job any more, or it is lost
    SILENT = "silent"  # it does not answer, or did not do in time what it was told


BY_COMMAND = (Place.WORKING, Place.HELD, Place.NAMED)
AWAY = (Place.SUSPENDED, Place.STOPPED)
BUSY = (*BY_COMMAND, Place.ASKED, Place.RETURNING)
UNKNOWN = (Place.UNASKED, Place.ASKED, Place.WORKING, Place.RETURNING, Place.SILENT)  # in the end


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # nothing was touched on any node
    TAKEN_BACK = "taken_back"  # the job runs on every node, or is suspended on every node, as before
    UNSETTLED = "unsettled"  # a node is silent, or its part did not come back


# ---- events: of a node, but for Late and Stopped --------------------------------------------------------------------


class Came(Struct, frozen=True):
    """Its part waits at a barrier."""

    node: str
    barrier: Barrier


class Done(Struct, frozen=True):
    """It has done what it was told to begin, or to restore."""

    node: str


class Kept(Struct, frozen=True):
    """Its store has the list of all parts of the image, and it waits at the last barrier."""

    node: str


class Left(StrEnum):
    """The state in which a failure leaves a node's part, by its own word."""

    REFUSED = "refused"  # as before, wherever that was
    TAKEN_BACK = "taken_back"  # where it was when it began
    UNKNOWN = "unknown"  # it is asked


class Failed(Struct, frozen=True):
    """It has not done that."""

    node: str
    left: Left = Left.UNKNOWN


class Stands(Struct, frozen=True):
    """Its answer: running, suspended, stopped, gone, or held at a barrier.

    cut: of a suspended, stopped or held part, else empty
    """

    node: str
    place: Place
    cut: str = ""


class Lost(Struct, frozen=True):
    """The connection to it is gone, or there is none. What became of its part is not known."""

    node: str


class Late(Struct, frozen=True):
    """The time of this wait has passed."""

    wait: int


class Stopped(Struct, frozen=True):
    """The caller wants it given up."""


class Obeyed(Struct, frozen=True):
    """It has carried out an order for its ranks. `at`: seconds, on the clock of the coordinator's caller.

    ranks: by their pids, with `changed_at` as of api.answers.Ranks; none after an admission
    """

    node: str
    number: int
    at: float
    ranks: tuple[Report, ...] = ()


Event = Came | Kept | Done | Failed | Stands | Lost | Late | Stopped | Obeyed


# ---- orders ---------------------------------------------------------------------------------------------------------


class Begin(Struct, frozen=True):
    """Begin the checkpoint, or the restore, as a part of the cut."""

    node: str


class Go(Struct, frozen=True):
    """The part may pass the barrier."""

    node: str
    barrier: Barrier


class Keep(Struct, frozen=True):
    """Write the list of all parts of the image to the node's store."""

    node: str


class GiveUp(Struct, frozen=True):
    """The part of this cut is to be taken back."""

    node: str
    cut: str


class Restore(Struct, frozen=True):
    """Restore the part; no other node is waited for. `revives`: its processes are in its part of the image alone."""

    node: str
    revives: bool = False


class Direct(Struct, frozen=True):
    """Have the ranks of its part obey, not before `at` on the clock that Obeyed has. `number`: of the order."""

    node: str
    number: int
    at: float
    lead: Lead


class Ask(Struct, frozen=True):
    """Ask where the job stands, once no command has its turn at it."""

    node: str


class Wait(StrEnum):
    """A wait for all nodes, each with a time of its own."""

    ANSWERS = "answers"
    ADMITTED = "admitted"
    STILL = "still"
    DURABLE = "durable"
    KEPT = "kept"  # the list of all parts, in every store
    READY = "ready"
    END = "end"  # every node has passed the last barrier
    WAY_BACK = "way_back"


class Deadline(Struct, frozen=True):
    """Say `Late(number)` when the time of this wait has passed. An earlier one means nothing any more."""

    number: int
    wait: Wait


class Finish(Struct, frozen=True):
    """Nothing is left to be done."""

    outcome: Outcome


Order = Begin | Go | Keep | GiveUp | Restore | Direct | Ask | Deadline | Finish
