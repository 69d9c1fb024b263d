"""The reader of the daemon's events, which goes on across the ends of daemons. It starts no daemon."""

import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from gcr.api.jobevents import AnyEvent, EventBatch
from gcr.api.requests import EventsRequest
from gcr.errors import DaemonUnavailable, DeadlinePassed, PeerGone
from gcr.rendezvous.client import ANSWER_TIMEOUT, CONNECT_TIMEOUT, Client

WAIT_S = 20.0  # of one request
AGAIN_S = 0.5  # between looks for the next daemon
GONE = (DaemonUnavailable, PeerGone, DeadlinePassed)


class Reader(Struct):
    """A place in the events of a daemon. `after` None: at their end."""

    after: int | None = 0
    daemon: str = ""

    def read(self, client: Client, wait_s: float = 0.0) -> tuple[AnyEvent, ...]:
        """Returns the next events, with an EventsMissed where some are forgotten; none where none come in time.

        Raises as `Client.request`.
        """
        request = EventsRequest(after=self.after, daemon=self.daemon, wait_s=wait_s)
        batch = client.ask(request, EventBatch, timeout=wait_s + ANSWER_TIMEOUT)
        self.after, self.daemon = batch.last, batch.daemon
        return batch.events

    def rest(self, client: Client) -> Iterator[AnyEvent]:
        """Yields all events that there are. Raises as `Client.request`."""
        while events := self.read(client):
            yield from events

    def follow(self, gone: Callable[[Exception], object]) -> Iterator[AnyEvent]:
        """Yields events for ever. `gone` hears of each daemon that does not answer any more, and is waited for.

        Raises WrongVersion for a daemon of another version, and other errors of one that answers.
        """
        told = False
        while True:
            try:
                with Client.connect(autostart=False, timeout=CONNECT_TIMEOUT) as client:
                    told = False
                    while True:
                        yield from self.read(client, WAIT_S)
            except GONE as error:
                if not told:
                    gone(error)
                told = True
            time.sleep(AGAIN_S)
