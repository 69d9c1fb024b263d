"""A checkpoint under way: the caller's wishes, and the findings of its steps."""

from collections.abc import Sequence
from typing import Self

from msgspec import Struct, field

from gcr.engine.ballast import Ballasts, Room
from gcr.engine.count import DeviceCount
from gcr.engine.node import Course, Node
from gcr.engine.progress import Copy
from gcr.engine.standing import refuse_as_left
from gcr.engine.streaming import Stream
from gcr.engine.target import Target
from gcr.errors import NoDescriptors, NoRoom
from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.job.states import Way
from gcr.protocol.operations.worker import Drained


class Options(Struct, frozen=True):
    """The caller's wishes. `paranoid`: chunks with equal hashes are compared byte by byte.

    resident: the memory stays on its devices until another program needs the room
    context_later: so does the driver's context · ends: the processes end once they are in an image
    """

    way: Way = Way.WHOLE
    live: bool = False
    paranoid: bool = False
    resident: bool = False
    context_later: bool = False
    ends: bool = False

    @classmethod
    def off_the_device(
        cls,
        data_only: bool,
        live: bool = False,
        paranoid: bool = False,
        resident: bool = False,
        context_later: bool = False,
        ends: bool = False,
    ) -> Self:
        way = Way.DATA_ONLY if data_only else Way.WHOLE
        return cls(way, live, paranoid, resident, data_only and context_later, ends)

    @property
    def data_only(self) -> bool:
        """Tells whether the control state stays where it is."""
        return self.way is not Way.WHOLE


class Leftovers(Struct):
    """Processes that an undo has not brought back.

    out: pids of processes that have their memory with gcr alone, so gcr must keep it · suspended: by pid, the reason.
    """

    out: set[int] = field(default_factory=set)
    suspended: dict[int, NoDescriptors | NoRoom] = field(default_factory=dict)

    def __contains__(self, target: Target) -> bool:
        return target.pid in self.out or target.pid in self.suspended


class Work(Struct):
    """One checkpoint of a job. `drained`: the workers' reports of each copy · `stream`: where the host has no room."""

    job: str
    targets: Sequence[Target]
    node: Node
    course: Course
    options: Options
    count: DeviceCount
    ballasts: Ballasts
    drained: dict[Copy, Drained] = field(default_factory=dict)
    copied_live: int = 0  # bytes
    stream: Stream | None = None
    decision: DecisionRecord | None = None
    leftovers: Leftovers = field(default_factory=Leftovers)

    @classmethod
    def of(cls, job: str, targets: Sequence[Target], node: Node, course: Course, options: Options) -> Self:
        count = DeviceCount(targets, options.data_only)
        return cls(job, targets, node, course, options, count, Ballasts(Room(targets), count))

    @property
    def kept_in(self) -> KeptImage | None:
        """The image that alone has the bytes, where there is one."""
        return self.stream.kept_in if self.stream else None

    @property
    def snapshot_bytes(self) -> int:
        """Returns the bytes that were copied within the devices at the cut."""
        return sum(one.snapshot for one in self.drained.values())

    def close(self) -> None:
        """Closes the daemon's own descriptors of what was copied."""
        for target in self.targets:
            target.forget_copy()
        if self.stream:
            self.stream.close()

    def tell_what_is_left(self, error: Exception) -> None:
        """Raises NotTakenBack, StandsStill where a process does not run on after `error`."""
        stuck = [target for target in self.targets if target.pid in self.leftovers.out]
        refuse_as_left(self.job, error, self.leftovers.suspended, stuck)
