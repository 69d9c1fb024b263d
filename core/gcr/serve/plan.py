"""Decides what to do next for the models of `gcr serve`: a pure function of what they are and of who waits.

Room is counted as bytes of device memory. A need that is not known takes all that can be had, so the first start of a
model has the device to itself, but for pinned ones. A model that needs more than there is by the count is tried alone.
The device's own refusal (`crowded`) outweighs the count.
"""

import logging
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from gcr.policy import Candidate, Policy
from gcr.serve.policies import Lru
from gcr.serve.states import AWAY, HOLDS_ROOM, State
from gcr.serve.upstream import Next

log = logging.getLogger(__name__)


class View(Struct, frozen=True, kw_only=True):
    """A model as the plan sees it. Times are seconds of one monotonic clock.

    called: its time of day has come · stays: it may not be parked · held_until: while it has requests it keeps its
    room until then · may_begin: it may be started or woken from then on, after a failure · crowded: the device refused
    it for lack of room
    """

    state: State
    candidate: Candidate
    pinned: bool = False
    called: bool = False
    stays: bool = False
    idle: float | None = None
    held_until: float = 0.0
    may_begin: float = 0.0
    crowded: bool = False

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def need(self) -> int | None:
        return self.candidate.bytes

    @property
    def busy(self) -> bool:
        return self.candidate.active > 0 or self.candidate.waiting > 0

    @property
    def wanted(self) -> bool:
        return self.state in AWAY and (self.pinned or self.called or self.busy)  # with requests: it was parked by hand

    @property
    def can_leave(self) -> bool:
        return self.state == State.READY and not self.pinned and not self.stays


class Plan(Struct, frozen=True, kw_only=True):
    """Names of models. `drain`: get no new requests, and are parked after those they have; `stuck`: there is no room
    for them, and none can be made; `broken`: the policy failed, and the least recently used left instead.
    """

    begin: tuple[str, ...] = ()
    park: tuple[str, ...] = ()
    drain: frozenset[str] = frozenset()
    stuck: tuple[str, ...] = ()
    broken: bool = False


class _Asked:
    """A policy that is not trusted: of an answer that makes no sense, or an exception, it notes that it is broken."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.broken = False

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        known = {each.name for each in candidates}
        return self._answer(known, lambda by: by.leaves(candidates, demand, now))

    def comes(self, waiting: Sequence[Candidate], now: float) -> Sequence[str]:
        known = {each.name for each in waiting}
        found = self._answer(known, lambda by: by.comes(waiting, now))
        return [*found, *sorted(known.difference(found))]

    def _answer(self, known: Collection[str], question: Callable[[Policy], Sequence[str]]) -> Sequence[str]:
        try:
            found = list(question(self._policy))
            if len({*found}) == len(found) and {*found} <= {*known}:
                return found
            log.warning("policy %s answered %r, asked about %s", self._policy.name, found, sorted(known))
        except Exception:  # a third party's policy may raise anything
            log.warning("policy %s failed", self._policy.name, exc_info=True)
        self.broken = True
        return question(Lru())


def plan(views: Sequence[View], room: int | None, policy: Policy, now: float) -> Plan:
    """`room`: bytes for all of them together; None where it is not known, and the device alone says no."""
    asked = _Asked(policy)
    asking = [each for each in views if each.wanted and each.may_begin <= now]
    never = _never(asking, views, room)
    wanted = [each for each in asking if each.name not in never]
    order = asked.comes([each.candidate for each in wanted], now) if wanted else ()
    by_name = {each.name: each for each in wanted}
    holding = [each for each in views if each.state in HOLDS_ROOM]
    begin: list[str] = []
    found = Plan()
    for demand in (by_name[name] for name in order):
        missing = shortfall(demand, holding, room)
        if missing <= 0:
            begin.append(demand.name)
            holding.append(demand)
            continue
        found = _made_room(demand, holding, missing, asked, now)
        if not found.stuck:  # the next ones wait for their turn
            break
    idle = [each.name for each in views if _is_idle(each, now) and each.name not in found.park]
    stuck = (*found.stuck, *never)
    return Plan(begin=tuple(begin), park=(*found.park, *idle), drain=found.drain, stuck=stuck, broken=asked.broken)


def shortfall(demand: View, holding: Sequence[View], room: int | None) -> float:
    """Returns how many bytes must still leave; infinity for all that can."""
    if demand.crowded:
        return 1 if any(each.can_leave or each.state == State.PARKING for each in holding) else 0
    if demand.need is None or any(each.need is None for each in holding):
        return float("inf") if any(not each.pinned for each in holding) else 0
    if room is None:
        return 0
    if (demand.need or 0) > room and not any(each.pinned for each in holding):
        return float("inf") if holding else 0
    return sum(each.need or 0 for each in holding) + (demand.need or 0) - room


def next_in(views: Sequence[View], room: int | None, policy: Policy, now: float) -> Next | None:
    """Returns the model that comes next, if it is parked, and there is room for a part of it already."""
    wanted = {each.name: each for each in views if each.wanted and each.may_begin <= now}
    needs = [each.need for each in views if each.state in HOLDS_ROOM]
    if not wanted or room is None or None in needs:
        return None
    first = wanted[_Asked(policy).comes([each.candidate for each in wanted.values()], now)[0]]
    left = room - sum(need or 0 for need in needs)
    return Next(first.name, left) if first.state == State.PARKED and not first.crowded and left > 0 else None


def _made_room(demand: View, holding: Sequence[View], missing: float, asked: _Asked, now: float) -> Plan:
    """Returns the plan by which room for one model is made."""
    missing -= sum(_freed(each, missing) for each in holding if each.state == State.PARKING)
    if missing <= 0:
        return Plan()
    may = [each for each in holding if each.can_leave]
    idle = [each for each in may if not each.busy]
    busy = [each for each in may if each.busy and each.held_until <= now]
    park: list[str] = []
    drain: list[str] = []
    for group, leaving in ((idle, park), (busy, drain)):
        by_name = {each.name: each for each in group}
        names = asked.leaves([each.candidate for each in group], demand.candidate, now) if group else ()
        for name in names:
            if missing <= 0:
                break
            leaving.append(name)
            missing -= _freed(by_name[name], missing)
    if missing > 0 and missing != float("inf") and any(each.busy and each not in busy for each in may):
        return Plan()  # some keep their room for a moment yet: none leaves in vain before
    none_left = all(each.state == State.READY and not each.can_leave for each in holding)
    parked_at_once = [name for name in drain if next(e for e in busy if e.name == name).candidate.active == 0]
    return Plan(
        park=(*park, *parked_at_once),
        drain=frozenset(drain),
        stuck=(demand.name,) if none_left else (),
    )


def _freed(leaving: View, missing: float) -> float:
    return missing if leaving.need is None and missing != float("inf") else float(leaving.need or 0)


def _is_idle(view: View, now: float) -> bool:
    if view.idle is None or view.busy or not view.can_leave:
        return False
    return now - view.candidate.last_used >= view.idle


def _never(asking: Sequence[View], views: Sequence[View], room: int | None) -> tuple[str, ...]:
    """Returns models that can never have room beside the pinned ones."""
    kept = [each.need or 0 for each in views if each.pinned]
    if room is None or not kept:
        return ()
    return tuple(each.name for each in asking if not each.pinned and sum(kept) + (each.need or 0) > room)
