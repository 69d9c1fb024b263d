"""Decides the next step of a migration: the outcome of one order in, the next order out. No socket and no clock.

    forth    admit · begin · copy … · leave · stop · bring · hold · GIVE · own · open · forget
    back     keep · take_back · abandon

`give` is the decision, and the source alone makes it: its record says either that the target has the job, or that the
source keeps it. The target's gates open only once it was given the job, and the source brings it back only once it has
kept it. So a step that failed before, or of which no word came, leads back by `keep`. If the job turns out to be given
away, the way leads forth again. A silent source leaves the target waiting: `recover` settles it later.
"""

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from gcr.migration.messages import Finish, Heard, Order, Outcome, Task

TRIES = 3  # of each step that has to be done in the end

_FORTH = (
    *(Order.ADMIT, Order.BEGIN, Order.COPY, Order.LEAVE, Order.STOP, Order.BRING, Order.HOLD),
    *(Order.GIVE, Order.OWN, Order.OPEN, Order.FORGET),
)
_NEXT = dict(pairwise(_FORTH))
_AGAIN = (Order.OWN, Order.REOPEN, Order.FORGET, Order.KEEP, Order.TAKE_BACK)

Next = Order | Finish


class Coordination(Struct):
    """One migration. Call `start` once, then `on` with what became of each order.

    pays: tells after a round whether another one pays · is_settled: the source knows nothing of it
    left: the job was to leave the source, so another coordinator may have settled it meanwhile
    """

    task: Task = Task.MIGRATE
    pays: Callable[[], bool] = lambda: False
    under_way: Order = Order.ADMIT
    tries: int = 0
    stopped: bool = False
    is_settled: bool = False
    left: bool = False

    def start(self) -> Next:
        return self._order(Order.ADMIT if self.task is Task.MIGRATE else Order.KEEP)

    def on(self, heard: Heard) -> Next:
        """Returns the next order, or the end."""
        now = self.under_way
        if heard is Heard.DONE:
            return self._after(now)
        if now is Order.KEEP and heard is Heard.GIVEN:
            return self._order(Order.OWN)
        if now is Order.KEEP and heard is Heard.UNKNOWN:
            self.is_settled = True
            return self._order(Order.ABANDON)
        return self._failed(now)

    def _after(self, done: Order) -> Next:
        match done:
            case Order.COPY if self.pays():
                return self._order(Order.COPY)
            case Order.OWN if self.task is Task.RECOVER or self.stopped:
                return self._order(Order.REOPEN)  # what waited there may have given up by itself
            case Order.REOPEN:
                return self._order(Order.FORGET)
            case Order.KEEP:
                return self._order(Order.TAKE_BACK)
            case Order.TAKE_BACK:
                return self._order(Order.ABANDON)
            case Order.ABANDON:
                return self._abandoned()
            case Order.FORGET:
                return Finish(Outcome.DONE)
            case _:
                return self._order(_NEXT[done])

    def _failed(self, order: Order) -> Next:
        if order is Order.ADMIT:
            return Finish(Outcome.REFUSED)
        if order is Order.OPEN:
            return self._order(Order.REOPEN)
        if order is Order.ABANDON:  # it can run nothing there without the source's word
            return self._abandoned()
        if order in _AGAIN:
            return self._again(order)
        self.stopped = True
        return self._order(Order.KEEP)

    def _abandoned(self) -> Next:
        """Returns the end, once the target has given up, or does not answer: the job runs at the source by then."""
        if not self.is_settled:
            return Finish(Outcome.TAKEN_BACK)
        if self.task is Task.RECOVER:
            return Finish(Outcome.DONE)
        return Finish(Outcome.UNSETTLED if self.left else Outcome.TAKEN_BACK)

    def _again(self, order: Order) -> Next:
        self.tries += 1
        if self.tries < TRIES:
            return order
        return Finish(Outcome.DONE if order is Order.FORGET else Outcome.UNSETTLED)

    def _order(self, order: Order) -> Order:
        self.under_way, self.tries, self.left = order, 0, self.left or order is Order.LEAVE
        return order
