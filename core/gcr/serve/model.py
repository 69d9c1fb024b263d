"""One model of the pool: its state, its requests, and what is known of it."""

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from gcr.policy import Candidate
from gcr.serve import refusals
from gcr.serve.config import ModelConfig
from gcr.serve.plan import View
from gcr.serve.refusals import Kind, Refusal
from gcr.serve.room import Room
from gcr.serve.states import Event, State, moved
from gcr.serve.upstream import Found

SHORT_LIFE_S = 10.0  # a server that dies sooner after its start counts as one that does not start
HOPELESS = 2  # failures in a row of a model that never answered
LONGEST_PAUSE_S = 60.0
MOST_DOUBLINGS = 7  # beyond the longest pause


class Waiter(Struct, eq=False):
    """A request that waits for its turn, from `since` to its deadline: seconds of the loop's clock."""

    turn: "asyncio.Future[None]"
    since: float
    deadline: float


class Track(Struct):
    """The past of a model. Times in seconds of the loop's clock, but `way_s`, a duration.

    way_s: its last way to the device · woke: when that ended · begins: earliest time to start or wake it again
    called_until: it is brought in until then, though there is no request · stays_until: it could not be parked
    crowded: the device had no room for it · why: its last failure, with which requests are refused as `kind`
    helps: the next try may do better, so requests wait for it
    """

    last_used: float = 0.0
    uses: int = 0
    way_s: float = 0.0
    woke: float = 0.0
    failures: int = 0
    begins: float = 0.0
    called_until: float = 0.0
    stays_until: float = 0.0
    crowded: bool = False
    why: str = ""
    kind: Kind = refusals.MODEL_FAILED
    helps: bool = True


class Model:
    """Belongs to one event loop."""

    def __init__(self, config: ModelConfig, told: Callable[[str, State, Event], object]) -> None:
        self.config = config
        self.state = State.COLD
        self.job: Found | None = None
        self.bytes = config.memory
        self.active = 0
        self.draining = False
        self.queue: deque[Waiter] = deque()
        self.track = Track()
        self.work: asyncio.Task[None] | None = None  # the last that changed its state
        self._told = told

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def open(self) -> bool:
        """Returns whether a request is passed on at once."""
        return self.state is State.READY and not self.draining and not self.queue

    @property
    def awaited(self) -> bool:
        """Returns whether requests wait for it to come back, and the device has not refused it for lack of room."""
        return self.state is State.PARKED and bool(self.queue) and not self.track.crowded

    @property
    def need(self) -> int | None:
        """Returns the bytes of device memory to plan with; None if they are not known."""
        return self.config.memory if self.state is State.COLD else self.bytes  # a start may take more

    def takes(self, nbytes: int, room: Room) -> None:
        """Notes how much device memory it takes: at least as much as the file says."""
        self.bytes = max(nbytes, self.config.memory or 0)
        room.compared(self.name, self.bytes)

    def move(self, event: Event) -> None:
        self.state = moved(self.state, event)
        self._told(self.name, self.state, event)

    def begin(self, now: float) -> None:
        """Counts a request that is passed on from here."""
        self.active += 1
        self.track.uses += 1
        self.track.last_used = now

    def finish(self, now: float) -> None:
        self.active -= 1
        self.track.last_used = now

    def call(self, now: float) -> None:
        """Has it brought to the device without a request; it is given up after its `wait`."""
        if self.state is not State.READY:
            self.track.called_until = now + self.config.wait

    def arrived(self, now: float, way_s: float) -> None:
        """Notes that it answers again, after a way of `way_s` seconds to the device."""
        self.track.way_s, self.track.woke, self.track.last_used = way_s, now, now
        self.track.crowded, self.track.called_until = False, 0.0

    def failed(self, now: float, why: str, kind: Kind = refusals.MODEL_FAILED, pause: float | None = None) -> None:
        """Notes a failure. The pause before the next try doubles with each, unless it is given: then none waits.

        None waits either for a model that never answered, once a second try has failed: its command may be wrong.
        """
        self.track.failures += 1
        hopeless = pause is not None or (not self.track.woke and self.track.failures >= HOPELESS)
        self.track.why, self.track.kind, self.track.helps = why, kind, not hopeless
        doubled = min(LONGEST_PAUSE_S, 0.5 * 2 ** min(self.track.failures, MOST_DOUBLINGS))
        self.track.begins = now + (doubled if pause is None else pause)

    def failure(self, now: float) -> Refusal:
        """Returns the refusal of a request, which says why it failed last."""
        return Refusal(self.track.kind, f"{self.name}: {self.track.why}", self.track.begins - now)

    def may_wait(self, deadline: float) -> bool:
        """Returns whether a request with this deadline waits for the next try."""
        return self.track.helps and self.track.begins < deadline

    def died(self, now: float, why: str) -> None:
        """Notes a death. Only one soon after the last way to the device delays the next start."""
        if now - self.track.woke < SHORT_LIFE_S:
            self.failed(now, why)
            self.track.begins = now if self.track.failures == 1 else self.track.begins
        else:
            self.track.failures, self.track.why, self.track.kind = 0, why, refusals.MODEL_FAILED
            self.track.helps = True

    def grant(self, now: float) -> None:
        """Gives all requests that wait their turn."""
        while self.queue and self.state is State.READY and not self.draining:
            waiter = self.queue.popleft()
            if not waiter.turn.done():
                self.begin(now)
                waiter.turn.set_result(None)

    def refuse(self, refusal: Refusal, late: Callable[[Waiter], bool] = lambda _waiter: True) -> None:
        """Refuses requests that wait: all, or those that are `late`."""
        for waiter in [each for each in self.queue if late(each)]:
            self.queue.remove(waiter)
            if not waiter.turn.done():
                waiter.turn.set_exception(refusal)

    def give_up(self, now: float) -> None:
        """Refuses requests that wait, but for those that have time until the next try."""
        self.refuse(self.failure(now), lambda waiter: not self.may_wait(waiter.deadline))

    def view(self, now: float, hold: float) -> View:
        track = self.track
        return View(
            state=self.state,
            candidate=Candidate(
                name=self.name,
                priority=self.config.priority,
                bytes=self.need,
                active=self.active,
                waiting=len(self.queue),
                since=self.queue[0].since if self.queue else None,
                last_used=track.last_used,
                uses=track.uses,
                wake_s=track.way_s,
            ),
            pinned=self.config.pinned,
            called=now < track.called_until,
            stays=now < track.stays_until,
            idle=self.config.unasked.idle,
            held_until=track.woke + hold,
            may_begin=track.begins,
            crowded=track.crowded,
        )
