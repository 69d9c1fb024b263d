"""The operations on the ring of a copy, through which its bytes pass to an image or from it.

A `window` is an offset on the line, and a size. `windows` lie one behind the other in a slot.
"""

from gcr.protocol.operations.operation import Nothing
from gcr.protocol.operations.worker import Bytes, Descriptors, Named, OfCopy, Page


class Slots(Descriptors, frozen=True):
    slots: int


class MakeRing(Named[Slots], frozen=True):
    """`most` and `least`: slots; `beyond`: the arena's limit does not count."""

    op = "make_ring"
    gives = "the first pieces of the memory of the slots"

    slot_bytes: int
    most: int
    least: int
    beyond: bool


class RingMemory(Page, frozen=True):
    op = "ring_memory"
    gives = "pieces of the memory of the slots, in order"


class LayOutHeld(OfCopy[Bytes], frozen=True):
    op = "lay_out_held"


class Passing(OfCopy[Nothing], frozen=True):
    slot: int
    windows: tuple[tuple[int, int], ...]
    deadline: float


class Fill(Passing, frozen=True):
    op = "fill"


class Empty(Passing, frozen=True):
    op = "empty"


class DropRing(OfCopy[Nothing], frozen=True):
    op = "drop_ring"
