"""Barriers of a cut over several nodes: where a node's part waits until the others have come as far."""

from enum import StrEnum


class Barrier(StrEnum):
    """A place at which a checkpoint or a restore waits for the word of the cut's coordinator."""

    ADMITTED = "admitted"  # all that may refuse was asked; the program runs
    APART = "apart"  # in the place of `still`: ranks here need another node's calls first, so the coordinator leads
    STILL = "still"  # every process stands still at its gate; nothing was handed over
    DURABLE = "durable"  # of a checkpoint with an image: the image is on disk, and all can still be taken back
    READY = "ready"  # of a restore: memory and control state are back, and the gates are closed


BEFORE_SUSPENDED = (Barrier.ADMITTED, Barrier.STILL)
BEFORE_IMAGED = (*BEFORE_SUSPENDED, Barrier.DURABLE)
BEFORE_RUNNING = (Barrier.READY,)
