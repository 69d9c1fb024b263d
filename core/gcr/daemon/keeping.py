"""A daemon looks after its own place: folder, locks, socket and journal are made again when another removes them.

A logout takes the runtime directory away, cleaners take old files, users take folders. Suspended jobs outlive that.
"""

import logging
import threading
from collections.abc import Callable

from msgspec import Struct

from gcr.daemon.seat import Seat, SeatTaken
from gcr.daemon.server import Server
from gcr.errors import GcrError

log = logging.getLogger("gcr.daemon")

LOOK_EVERY = 1.0  # seconds


class Keeping(Struct):
    seat: Seat
    server: Server
    _said: str = ""  # the last trouble, which is logged once

    def start(self) -> None:
        """Looks in a thread of its own, since the thread that looks after the jobs may wait for one of them."""
        threading.Thread(target=self._keep, name="gcr-keep", daemon=True).start()

    def _keep(self) -> None:
        while not self.server.stopping.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Raises nothing. Records are mended too where the socket cannot be made again, as after a logout."""
        server = self.server
        try:
            troubles = (
                _trouble("nothing leads here just now", self._serve_again),
                _trouble("a decision is not written again", server.coordinator.journal.mend),
                _trouble("what supervisors missed is not written again", server.coordinator.jobs.missed.mend),
                _trouble("present processes are not written again", server.presence.mend),
            )
            self._say("; ".join(filter(None, troubles)))
        except SeatTaken as taken:
            self._say(f"{taken}: this one ends as soon as nothing is under way")
            server.stop_when_idle()

    def _serve_again(self) -> None:
        if listener := self.seat.keep():
            log.warning("the socket %s was removed by another; served again", self.seat.path)
            self.server.serve_at(listener)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.warning("%s", trouble)
        self._said = trouble


def _trouble(what: str, act: Callable[[], object]) -> str:
    """Empty where `act` did its work."""
    try:
        act()
    except (OSError, GcrError) as error:
        return f"{what}: {error}"
    return ""
