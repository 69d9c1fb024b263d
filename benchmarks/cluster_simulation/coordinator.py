"""The coordinator: gcr's own decisions (gcr.cluster.coordination), unchanged, one event after another.

Each event and each order takes time of its own, so events wait in line, as in the inbox of gcr.cluster.running.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from cluster_simulation.assumptions import Cost, Limits
from cluster_simulation.clock import Clock
from cluster_simulation.node import NodeOrder
from gcr.cluster.coordination import Coordination
from gcr.cluster.messages import Deadline, Event, Finish, Late, Order, Outcome, Wait

Send = Callable[[NodeOrder], None]

OVER = "over"


class Coordinator:
    """send: called with each order for a node · reached: the times at which each wait began, and `over`

    busy_s: seconds of its own work · longest: events that stood in line
    """

    def __init__(self, coordination: Coordination, clock: Clock, cost: Cost, limits: Limits, send: Send) -> None:
        self.coordination = coordination
        self.outcome: Outcome | None = None
        self.reached: dict[str, float] = {}
        self.busy_s, self.longest, self.events = 0.0, 0, 0
        self._clock, self._cost, self._limits, self._send = clock, cost, limits, send
        self._line: deque[Event] = deque()
        self._working = False
        self._late: tuple[int, float] = (0, 0.0)

    def start(self) -> None:
        self._work_on(self.coordination.start(), 0.0)

    def hear(self, event: Event) -> None:
        self._line.append(event)
        self.longest = max(self.longest, len(self._line))
        if not self._working:
            self._next()

    def _next(self) -> None:
        self._working = False
        number, end = self._late
        if self.outcome is not None:
            self._line.clear()
        elif self._line:
            self._take(self._line.popleft())
        elif end <= self._clock.now:  # only where nothing is in line, as the inbox has it
            self._take(Late(number))

    def _take(self, event: Event) -> None:
        self.events += 1
        self._work_on(self.coordination.on(event), self._cost.word)

    def _work_on(self, orders: list[Order], spent: float) -> None:
        self._working = True
        for order in orders:
            if isinstance(order, Deadline | Finish):
                self._clock.after(spent, partial(self._note, order))
            else:
                spent += self._cost.order
                self._clock.after(spent, partial(self._send, order))
        self.busy_s += spent
        self._clock.after(spent, self._next)

    def _note(self, order: Deadline | Finish) -> None:
        if isinstance(order, Finish):
            self.outcome = order.outcome
            self.reached[OVER] = self._clock.now
            return
        self.reached[order.wait.value] = self._clock.now
        self._late = (order.number, self._clock.now + self._seconds(order.wait))
        self._clock.at(self._late[1], self._look_at_the_time)

    def _look_at_the_time(self) -> None:
        if not self._working:
            self._next()

    def _seconds(self, wait: Wait) -> float:
        """As gcr.cluster.running has them."""
        if wait is Wait.STILL:
            return self._limits.cut
        if wait is Wait.ANSWERS:
            return self._limits.answers
        return self._limits.timeout + (0.0 if wait is Wait.ADMITTED else self._limits.grace)
