"""The turn at a job: one command or recovery at a time changes it. Beside it others may read copies that they made."""

from threading import Event, Lock

from msgspec import Struct, field


class Turn(Struct):
    """The turn at a job, and the signs of a recovery. Thread-safe.

    A command that has its copies, and whose program runs again, leaves the turn to the next cut and reads on.
    """

    settled: Event = field(default_factory=Event)  # cleared while a recovery is due or under way
    recovery_due: bool = False  # a stranded process has come that the recovery under way may not have seen
    _changing: bool = False
    _reading: int = 0  # commands that have left the turn and read their copies
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.settled.set()

    @property
    def changing(self) -> bool:
        """Tells whether a command or a recovery may change the job just now."""
        return self._changing

    @property
    def busy(self) -> bool:
        """Tells whether a command or a recovery is under way, even if it only reads its copies."""
        return self._changing or self._reading > 0

    def take(self, beside_readers: bool = False) -> bool:
        """Returns False if another command has the turn, or, unless `beside_readers`, reads its copies."""
        with self._lock:
            if self._changing or (self._reading and not beside_readers):
                return False
            self._changing = True
            return True

    def give_back(self) -> None:
        with self._lock:
            self._changing = False

    def leave(self) -> None:
        """Gives the turn back, and goes on reading until `read`."""
        with self._lock:
            self._changing = False
            self._reading += 1

    def read(self) -> None:
        """Ends what `leave` began."""
        with self._lock:
            self._reading -= 1
