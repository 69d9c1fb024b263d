"""The supervisor of a parked job: its program has ended, an image has it, and the supervisor stays until it is back.

Two threads meet here. The reader of the daemon's line parks the job and ends the program; the main thread sees that
end, waits, and makes the program again. `_lock` guards the state that both look at.
"""

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from threading import Lock

from msgspec import Struct, field

from gcr.errors import GcrError, UnsupportedState, WrongState, typed
from gcr.parked import place_of
from gcr.processes import descendants
from gcr.protocol.channel import Request
from gcr.protocol.operations.daemon import ParkedIn
from gcr.protocol.operations.operation import Answer, Nothing, Operation
from gcr.protocol.operations.supervisor import Park, Unpark
from gcr.supervisor.revival import Returned, Revival

log = logging.getLogger("gcr.supervisor")

Reviver = Callable[[str, str, str | None], AbstractContextManager[Revival]]
"""Yields the way back of an image's processes; takes store, image, and the log that our standard output is."""

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
AWAITED = FORWARDED | {signal.SIGCHLD}
ENDING = FORWARDED - {signal.SIGUSR1, signal.SIGUSR2}  # those of a parked job; the others wait for the program
POLL_S = 0.5
_REMEMBERED = 64  # signals


class Parking(Struct):
    """`reviver`: None where a program that has ended cannot be brought back.

    root: the pid of the program that runs · kept: signals for it, to be sent once it is back
    _sent: those that it was sent last, and when: one that came while it stood still for CRIU it has not seen
    """

    reviver: Reviver | None = None
    root: int | None = None
    kept: list[int] = field(default_factory=list)
    _sent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _where: ParkedIn | None = None
    _former: ParkedIn | None = None  # from which the program came back
    _over: bool = False
    _asked: list[Request] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def parked(self) -> ParkedIn | None:
        """Returns the image that has the job; None while its program runs."""
        return self._where

    def has_ended(self) -> bool:
        """Returns whether the end of the program is that of the job: it is, unless the job was parked before."""
        with self._lock:
            self._over = self._where is None
        if self._over:
            _remove(self._former)  # the program may have ended before it ran again
        return self._over

    def forward(self, number: int, send: Callable[[int], object]) -> None:
        """Sends the program a signal, or keeps it where the job was parked meanwhile."""
        with self._lock:
            if self._where:
                self.kept.append(number)
            else:
                self._sent.append((time.monotonic(), number))
                send(number)

    # ---- for the daemon -----------------------------------------------------------------------------------------

    def park(self, asked: Park) -> None:
        """Ends the program and its descendants, which stand still and are in the image.

        Raises WrongState where the daemon has withdrawn the image, or the program has ended; UnsupportedState.
        """
        place = place_of(asked.store)
        with self._lock:
            if self.reviver is None or self.root is None:
                raise UnsupportedState("this supervisor cannot bring its program back")
            if self._over or self._where or place is None or not place.commit():
                raise WrongState("the program is not to be parked any more", hint="gcr ps")
            self._where = ParkedIn(asked.store, asked.image)
            since = time.monotonic() - asked.stood_s
            self.kept += [number for at, number in self._sent if at > since]
        for pid in (self.root, *descendants(self.root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def unpark(self, _asked: Unpark, request: Request) -> Answer:
        """Has the main thread bring the program back, and answer then."""
        with self._lock:
            if self._over:
                raise WrongState("the job has ended", state="exited")
            if self._where is None:
                return Answer()
            self._asked.append(request)
        os.kill(os.getpid(), signal.SIGCHLD)  # wakes it
        return Answer(later=True)

    # ---- the main thread ----------------------------------------------------------------------------------------

    def await_return(self, log_file: str | None, tell: Callable[[Operation[Nothing]], object]) -> Returned | int:
        """Returns the program once it is back, or the signal that has ended the job. AWAITED are blocked.

        log_file: as of `Revival.bring_back`
        """
        while True:
            told = signal.sigtimedwait(AWAITED, POLL_S)
            if told and told.si_signo in FORWARDED:
                self.kept.append(told.si_signo)
            while self._asked and not self._ending():
                if back := self._answered(self._asked.pop(0), log_file, tell):
                    return back
            if number := self._ending():
                self._give_up()
                return number

    def _ending(self) -> int:
        """Returns the first signal that ends a parked job; 0 without one. Those that we ignore the program may want."""
        return next((n for n in self.kept if n in ENDING and signal.getsignal(n) != signal.SIG_IGN), 0)

    def _answered(
        self, request: Request, log_file: str | None, tell: Callable[[Operation[Nothing]], object]
    ) -> Returned | None:
        """Makes the processes again. Returns None after an error, which the daemon is told; the job is parked still."""
        try:
            back = self._revived(log_file, tell)
        except KeyboardInterrupt:  # reading the image was interrupted: a Ctrl-C, which ends the job
            self.kept.append(signal.SIGINT)
            return None
        except Exception as error:
            log.warning("the program was not brought back: %s", error)
            with suppress(GcrError):  # the daemon has died: the next one is told that the job is parked
                request.fail(typed(error))
            return None
        with self._lock:
            self._former, self._where, self.root = self._where, None, back.pid
            asked, self._asked = [request, *self._asked], []
        for each in asked:
            with suppress(GcrError):  # the daemon has died: the next one finds the processes, suspended
                each.reply_json()
        return back

    def _revived(self, log_file: str | None, tell: Callable[[Operation[Nothing]], object]) -> Returned:
        """CRIU must not inherit blocked signals. Those that come meanwhile are kept by our handlers."""
        assert self.reviver and self._where
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        try:
            with self.reviver(self._where.store, self._where.image, log_file) as revival:
                return revival.bring_back(log_file, tell)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)

    def _give_up(self) -> None:
        with self._lock:
            where, self._where, self._over = self._where, None, True
        _remove(where)


def _remove(where: ParkedIn | None) -> None:
    if where and (place := place_of(where.store)):
        place.remove()


def keep(parking: Parking, numbers: Collection[int]) -> None:
    """Has signals kept that come while none is awaited. One that is ignored stays so: the program inherits that."""
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda got, _frame: parking.kept.append(got))
