"""Operations of a worker on the snapshot of a copy, which lies on the device until it is read."""

from msgspec import Struct

from gcr.protocol.operations.operation import Nothing, Operation
from gcr.protocol.operations.worker import Bytes, Moved, Named, OfCopy


class MakeRoom(OfCopy[Bytes], frozen=True):
    op = "make_room"

    deadline: float


class CopyOn(OfCopy[Moved], frozen=True):
    op = "copy_on"

    deadline: float


class Expect(Named[Nothing], frozen=True):
    """A SetAside of so many bytes is likely to come: the worker takes room on the host for it. Needs no answer."""

    op = "expect"

    nbytes: int


class AsideFacts(Struct, frozen=True):
    """`sizes`: bytes of the segments, in order; `in_place`: bytes that are left to be read in place."""

    sizes: tuple[int, ...]
    in_place: int


class SetAside(Named[AsideFacts], frozen=True):
    """Copies parts of held handles, back to back, within the device.

    ReadInPlace and then CopyOn bring them to segments of these sizes, which SealedSegments gives.

    pieces: id, offset in the handle, bytes, and whether these may be read in place
    fills: as many of the latter as there is room for are copied aside still
    """

    op = "set_aside"

    pieces: tuple[tuple[int, int, int, bool], ...]
    fills: bool
    deadline: float


class ReadInPlace(OfCopy[Moved], frozen=True):
    """Reads what SetAside has left in the program's memory, which must not be written meanwhile."""

    op = "read_in_place"

    deadline: float


class GiveUpSnapshots(Operation[Nothing], frozen=True):
    op = "give_up_snapshots"


class RenewRoom(Operation[Nothing], frozen=True):
    """Takes free memory of the device for a moment, so that the next SetAside finds it ready."""

    op = "renew_room"
