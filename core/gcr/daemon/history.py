"""The events of this daemon: a bounded list in memory, which clients read and follow.

A follower asks for the events above a number, and a thread of its own waits for the next one. The list drops its oldest
event for a new one, whether it was read or not. So a slow follower delays no job, and it is told how many it missed.

Each user but those that rule has a list of its own. So the numbers tell nothing of other users' jobs, and no user
drives out the events of another. Nothing is called and nothing is logged under the lock.
"""

import json
import os
import secrets
import time
from collections import deque
from itertools import islice
from threading import Condition, Event

from msgspec import Struct, convert, field

from gcr.api.jobevents import AnyEvent, DaemonStarted, EventBatch, EventsMissed
from gcr.api.requests import EventsRequest
from gcr.daemon.ledger import log_event
from gcr.daemon.permission import Caller
from gcr.version import __version__

MOST = 1024  # events that a list keeps: 1 MiB at most
BATCH = 256  # events of one answer
LOOK_S = 1.0  # between looks whether a follower that waits has left


class Ring(Struct):
    """The last MOST of `count` events, as JSON: one object each in memory. The first of all events has number 1."""

    kept: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST))
    count: int = 0

    def add(self, event: bytes) -> None:
        self.kept.append(event)
        self.count += 1

    def above(self, number: int) -> tuple[int, list[bytes]]:
        """Returns the oldest events above a number, and the number before the first of them."""
        gone = self.count - len(self.kept)
        before = max(number, gone)
        return before, list(islice(self.kept, before - gone, before - gone + BATCH))


class History:
    """Thread-safe; the lock is the last in any order."""

    def __init__(self) -> None:
        self._daemon = secrets.token_hex(8)
        self._started = _packed(DaemonStarted(pid=os.getpid(), version=__version__))
        self._everything = self._begun()
        self._own: dict[int, Ring] = {}  # by user
        self._changed = Condition()

    def note(self, owner: int, event: AnyEvent) -> None:
        """Adds an event of a job of this user, and logs it."""
        packed = _packed(event)
        with self._changed:
            self._everything.add(packed)
            self._of(owner).add(packed)
            self._changed.notify_all()
        log_event(event)

    def asked(self, request: EventsRequest, caller: Caller, gone: Event) -> EventBatch:
        """Returns the oldest events that are asked for. Waits for one as the request says, unless the caller leaves."""
        end = time.monotonic() + request.wait_s
        with self._changed:
            ring = self._everything if caller.rules else self._of(caller.uid)
            after = self._above(request, ring)
            while ring.count <= after and not gone.is_set() and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, LOOK_S))
            before, found = ring.above(after)
        return self._batch(after, before, found)

    def _above(self, request: EventsRequest, ring: Ring) -> int:
        if request.after is None:
            return ring.count
        known = request.daemon in ("", self._daemon) and request.after <= ring.count
        return request.after if known else 0

    def _batch(self, after: int, before: int, found: list[bytes]) -> EventBatch:
        events = [_unpacked(event, number) for number, event in enumerate(found, before + 1)]
        missed = [EventsMissed(count=before - after, seq=before)] if before > after else []
        return EventBatch(daemon=self._daemon, last=before + len(found), events=(*missed, *events))

    def _of(self, user: int) -> Ring:
        if user not in self._own:
            self._own[user] = self._begun()
        return self._own[user]

    def _begun(self) -> Ring:
        ring = Ring()
        ring.add(self._started)
        return ring


def _packed(event: AnyEvent) -> bytes:
    return json.dumps(event.to_json()).encode()  # also words that are not UTF-8


def _unpacked(packed: bytes, number: int) -> AnyEvent:
    event: AnyEvent = convert({**json.loads(packed), "seq": number}, AnyEvent)
    return event
