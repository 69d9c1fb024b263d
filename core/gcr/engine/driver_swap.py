"""Strategy `driver`: a process that gcr did not start.

The driver carries its data itself. That is slow, but it needs no shim.
"""

from msgspec import Struct, field

from gcr.engine.node import Course, Node, World
from gcr.errors import Lost
from gcr.job.decisions import DecisionRecord
from gcr.job.process import Process
from gcr.job.states import State


class DriverSwap(Struct):
    """A checkpoint or a restore under way. `before`, `after`: bytes by device, as the driver counts them."""

    process: Process
    node: Node
    world: World
    course: Course
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    decision: DecisionRecord | None = None

    @property
    def job(self) -> str:
        return self.process.job

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    def close(self) -> None:
        """Closes nothing: the driver has the copy."""

    def tell_what_is_left(self, error: Exception) -> None:
        """Records that the process is lost, once its driver has said so."""
        if isinstance(error, Lost):
            self.process.settle(State.LOST)
