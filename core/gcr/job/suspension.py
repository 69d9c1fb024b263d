"""The record of a process's suspension."""

from msgspec import Struct, field

from gcr.job.moves import Moves, moved
from gcr.job.placement import Placement


class Suspension(Struct):
    """The last suspension of a process: its transaction, its bytes by device, and the placement by the driver.

    unheld_by_device: bytes that the driver needs to take back a save that is not decided, and that nothing holds
    was_saved: its control state was saved at some time, or may have been by a former daemon
    """

    transaction: int = 0
    bytes_by_device: dict[str, int] = field(default_factory=dict)
    ballast_by_device: dict[str, int] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    unheld_by_device: dict[str, int] = field(default_factory=dict)
    was_saved: bool = False

    def came_back(self, moves: Moves) -> None:
        """Rewrites it for the devices that the process came back on."""
        self.placement = Placement()
        if moves:
            self.bytes_by_device = moved(self.bytes_by_device, moves)
            self.ballast_by_device = moved(self.ballast_by_device, moves)
