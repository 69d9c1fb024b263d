"""The events of this daemon: bounded lists in memory, which clients read and follow.

A follower asks for the events above a number, and a thread of its own waits for the next one. A list drops its oldest
event for a new one, whether it was read or not. So a slow follower delays no job, and it is told how many it missed.
A training may save at each step, so saves have a list beside the others, and drive out saves alone.

Each user but those that rule has a list of its own. So the numbers tell nothing of other users' jobs, and no user
drives out the events of another. Nothing is called and nothing is logged under the lock.
"""

import heapq
import json
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from threading import Condition, Event

from msgspec import Struct, field

from gcr.api.jobevents import AnyEvent, DaemonStarted, EventBatch, EventsMissed, SaveDone, SaveFailed
from gcr.api.requests import EventsRequest
from gcr.converting import convert
from gcr.daemon.ledger import log_event
from gcr.daemon.permission import Caller
from gcr.version import __version__

MOST = 1024  # events that a list keeps: 1 MiB at most
SAVES = 256  # saves beside them
BATCH = 256  # events of one answer
LOOK_S = 1.0  # between looks whether a follower that waits has left

Numbered = tuple[int, bytes]


class Ring(Struct):
    """The last MOST of `count` events, and the last SAVES saves, as JSON: one object each in memory, with its number.

    The first of all events has number 1.
    """

    kept: deque[Numbered] = field(default_factory=lambda: deque(maxlen=MOST))
    saves: deque[Numbered] = field(default_factory=lambda: deque(maxlen=SAVES))
    count: int = 0

    def add(self, event: bytes, *, saves: bool = False) -> None:
        self.count += 1
        (self.saves if saves else self.kept).append((self.count, event))

    def above(self, number: int) -> list[Numbered]:
        """Returns the oldest events above a number."""
        found = heapq.merge(_above(self.kept, number), _above(self.saves, number))
        return list(islice(found, BATCH))


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
            for ring in (self._everything, self._of(owner)):
                ring.add(packed, saves=isinstance(event, SaveDone | SaveFailed))
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
            found = ring.above(after)
        return EventBatch(daemon=self._daemon, last=found[-1][0] if found else after, events=tuple(_told(after, found)))

    def _above(self, request: EventsRequest, ring: Ring) -> int:
        if request.after is None:
            return ring.count
        known = request.daemon in ("", self._daemon) and request.after <= ring.count
        return request.after if known else 0

    def _of(self, user: int) -> Ring:
        if user not in self._own:
            self._own[user] = self._begun()
        return self._own[user]

    def _begun(self) -> Ring:
        ring = Ring()
        ring.add(self._started)
        return ring


def _above(kept: deque[Numbered], number: int) -> list[Numbered]:
    return list(takewhile(lambda each: each[0] > number, reversed(kept)))[::-1]


def _told(after: int, found: list[Numbered]) -> Iterator[AnyEvent]:
    """Yields the events, and in the place of those that are forgotten how many these were."""
    for number, event in found:
        if number > after + 1:
            yield EventsMissed(count=number - after - 1, seq=number - 1)
        yield _unpacked(event, number)
        after = number


def _packed(event: AnyEvent) -> bytes:
    return json.dumps(event.to_json()).encode()  # also words that are not UTF-8


def _unpacked(packed: bytes, number: int) -> AnyEvent:
    event: AnyEvent = convert({**json.loads(packed), "seq": number}, AnyEvent)
    return event
