"""A restore under way: its source, and the findings of its steps."""

from collections.abc import Sequence

from msgspec import Struct, field

from gcr.engine.inflow import Imaged
from gcr.engine.node import Course, Node
from gcr.engine.orphaned import Orphaned
from gcr.engine.progress import Copy
from gcr.engine.target import Target
from gcr.engine.unreturned import process_lost
from gcr.job.decisions import DecisionRecord
from gcr.job.states import State
from gcr.protocol.operations.worker import Moved


class Restore(Struct):
    """One restore of a job. `refilled`: the workers' reports of each copy · `resident`: bytes that were there still.

    orphaned: processes that have ended meanwhile; their memory comes back for those that hold it
    """

    job: str
    targets: Sequence[Target]
    decision: DecisionRecord
    node: Node
    course: Course
    image: Imaged | None = None  # to come back with, instead of what was staged
    cold: bool = False
    streamed: bool = False  # bytes came from the image, and were nowhere whole in host memory
    adrift: set[int] = field(default_factory=set)  # pids that an undo did not suspend again: recovery does
    refilled: dict[Copy, Moved] = field(default_factory=dict)
    resident: dict[Copy, int] = field(default_factory=dict)
    orphaned: Sequence[Orphaned] = ()

    @property
    def owners(self) -> Sequence[Target]:
        """Returns the targets, and the ended processes that come back as memory alone."""
        return [*self.targets, *self.orphaned]

    @property
    def data_only(self) -> bool:
        """Tells, until the decision, whether the control state never left."""
        return self.decision.data_only

    def ballast(self, target: Target, device: str) -> int:
        """Returns the bytes that the driver will need on a device."""
        return 0 if self.data_only else target.ballast_by_device.get(device, 0)

    def close(self) -> None:
        """Closes the daemon's own descriptors of copies."""
        for target in self.targets:
            target.forget_copy()

    def tell_what_is_left(self, error: Exception) -> None:
        """Raises ProcessLost where the driver has lost some of the processes, and the others are suspended again."""
        left = [target.process for target in self.targets if not target.process.departed]
        lost = [process.identity.pid for process in left if process.state == State.LOST]
        if lost and len(lost) < len(left):
            raise process_lost(self.job, lost) from error
