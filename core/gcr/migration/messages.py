"""The events and orders of a migration's coordinator. One order is under way at a time."""

from enum import StrEnum

from msgspec import Struct


class Task(StrEnum):
    MIGRATE = "migrate"
    RECOVER = "recover"  # after a coordinator has died


class Order(StrEnum):
    """A step, in the order in which they are taken. Each may be ordered again."""

    ADMIT = "admit"  # both nodes are asked; nothing is touched
    BEGIN = "begin"  # both nodes write the migration down; the source offers its store
    COPY = "copy"  # one round: an image of the job, which runs on, and its pull
    LEAVE = "leave"  # the source writes down that nothing else may bring the job back
    STOP = "stop"  # the job goes into its last image, and ends at the source
    BRING = "bring"  # the target pulls that image, and makes the processes again, suspended
    HOLD = "hold"  # the target brings the memory back, and waits with closed gates
    GIVE = "give"  # the source writes down that the target has the job: the one decision
    OWN = "own"  # the target hears that it has the job
    OPEN = "open"  # its gates open
    REOPEN = "reopen"  # the target restores the job once more, without a wait
    FORGET = "forget"  # images and records of the migration go at both ends
    KEEP = "keep"  # the source writes down that it keeps the job, unless it has given it away
    TAKE_BACK = "take_back"  # the source runs the job
    ABANDON = "abandon"  # the target ends what it has of the job


class Heard(StrEnum):
    """The end of an order."""

    DONE = "done"
    FAILED = "failed"  # by the node's word
    LOST = "lost"  # no word: it may have been done
    GIVEN = "given"  # of KEEP: the target has the job already
    UNKNOWN = "unknown"  # of KEEP: the source knows no such migration
    STOPPED = "stopped"  # the caller gives up


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # nothing was touched
    TAKEN_BACK = "taken_back"  # the job runs at the source
    UNSETTLED = "unsettled"  # a node is silent, or failed at what it has to do


class Finish(Struct, frozen=True):
    """Nothing is left to be done."""

    outcome: Outcome
