"""The turn at a job: one command or recovery at a time changes it."""

from threading import Event, Lock

from msgspec import Struct, field


class Turn(Struct):
    """The lock that a command or a recovery holds while it changes a job, and the signs of a recovery."""

    settled: Event = field(default_factory=Event)  # cleared while a recovery is due or under way
    recovery_due: bool = False  # a stranded process has come that the recovery under way may not have seen
    _changing: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.settled.set()

    @property
    def busy(self) -> bool:
        return self._changing.locked()

    def take(self) -> bool:
        """Returns False if another command has the turn."""
        return self._changing.acquire(blocking=False)

    def give_back(self) -> None:
        self._changing.release()
