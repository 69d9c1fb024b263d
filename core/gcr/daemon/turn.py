"""The turn at a job: one command or recovery at a time changes it. Beside it others may read copies that they made.

Saves of a training program (commands/save.py) are not commands: those of several processes go on at once. A command
waits for them, and no save begins meanwhile. A save is refused while a command has the turn, since its program would
wait for it.
"""

from collections.abc import Callable
from threading import Condition, Event, Lock

from msgspec import Struct, field


class Turn(Struct):
    """The turn at a job, and the signs of a recovery. Thread-safe.

    A command that has its copies, and whose program runs again, leaves the turn to the next cut and reads on.
    """

    settled: Event = field(default_factory=Event)  # cleared while a recovery is due or under way
    recovery_due: bool = False  # a stranded process has come that the recovery under way may not have seen
    attempt: Lock = field(default_factory=Lock)  # held by an attempt to recover, which others wait for
    _changing: bool = False
    _waited_for: bool = False  # the turn is the daemon's own, and short
    _reading: int = 0  # commands that have left the turn and read their copies
    _copying: set[int] = field(default_factory=set)  # pids of processes that are being copied aside
    _draining: int = 0  # saves that read their copies to the host
    _awaiting: int = 0  # commands that wait for the end of saves
    _then: Callable[[bool], object] | None = None  # what the thread that gives the turn back does next
    _lock: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self.settled.set()

    @property
    def changing(self) -> bool:
        """Tells whether a command or a recovery may change the job just now."""
        return self._changing

    @property
    def is_awaited(self) -> bool:
        """Tells whether a command would wait or be refused: another one, or a recovery, has the turn or is due."""
        return self._changing or not self.settled.is_set()

    @property
    def busy(self) -> bool:
        """Tells whether a command or a recovery is under way, even if it only reads its copies."""
        return self._changing or self._reading > 0 or bool(self._copying) or self._draining > 0

    def take(self, beside_readers: bool = False, patience: float = 0.0, waited_for: bool = False) -> bool:
        """Returns False if another command has the turn, or, unless `beside_readers`, reads its copies.

        Waits for saves that are under way, and for a turn that is `waited_for`, `patience` seconds at most.
        """
        with self._lock:
            self._awaiting += 1
            try:
                there = self._lock.wait_for(lambda: not self._saves(beside_readers), patience)
            finally:
                self._awaiting -= 1
            if not there or self._changing or (self._reading and not beside_readers):
                return False
            self._changing, self._waited_for = True, waited_for
            return True

    def _saves(self, beside_readers: bool) -> bool:
        return self._waited_for or bool(self._copying) or (self._draining > 0 and not beside_readers)

    def give_back(self) -> None:
        self._end_turn(0)

    def leave(self) -> None:
        """Gives the turn back, and goes on reading until `read`."""
        self._end_turn(1)

    def once_free(self, do: Callable[[bool], object]) -> None:
        """Calls it at once with False, or with True on the thread that has the turn, after that gave it back.

        Of several the last one counts.
        """
        with self._lock:
            if self._changing:
                self._then = do
                return
        do(False)

    def _end_turn(self, reads: int) -> None:
        with self._lock:
            self._changing = self._waited_for = False
            self._reading += reads
            then, self._then = self._then, None
            self._lock.notify_all()
        if then is not None:
            then(True)

    def read(self) -> None:
        """Ends what `leave` began."""
        with self._lock:
            self._reading -= 1

    # ---- saves --------------------------------------------------------------------------------------------------

    def begin_save(self, pid: int, patience: float) -> bool:
        """Returns False if a command has the turn or waits for it. Awaits a copy of the process, so long at most."""
        with self._lock:
            there = self._lock.wait_for(lambda: pid not in self._copying, patience)
            if not there or self._changing or self._awaiting:
                return False
            self._copying.add(pid)
            return True

    def copied(self, pid: int) -> None:
        """Notes that nothing of the process is used any more: its copy is read until `end_save`."""
        with self._lock:
            self._draining += 1
            self._copying.discard(pid)
            self._lock.notify_all()

    def end_save(self, pid: int, copied: bool) -> None:
        """Ends what `begin_save` began."""
        with self._lock:
            if copied:
                self._draining -= 1
            else:
                self._copying.discard(pid)
            self._lock.notify_all()
