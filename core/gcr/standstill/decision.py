"""Decides how the ranks of a job come to one standstill: a pure function of what their agents report.

All gates are closed. A call that waits at its gate is *local* or *coupled*. The work of a local call ends by itself;
that of a coupled call, a collective, ends when other ranks have enqueued theirs. A coupled launch that is enqueued and
not done is *incomplete*: another rank has still to make its part. So a rank whose device does not drain is ahead. An
idle rank with calls at its gate is behind. Calls are admitted only where they bring ranks together, in this order:

    HELPER   calls of a communication library's own threads, while any device is busy
    PARTNER  a coupled call that another rank waits in, and has made more often than this one
    WALK     local calls of threads with nothing unfinished before them but the walk's own, up to the next coupled one
    LEAD     one coupled call of such a thread: only the way through it leads to the missing part
    SPIN     any call: a kernel may wait for a later call of its own process

Other ranks wait for a rank until it has made as many calls of a signature as the furthest of them. All calls up to that
one are needed, whatever happens meanwhile. So PARTNER, WALK and LEAD are each the beginning of a batch, in which the
agent goes on by itself (Admit.furthest). A thread that has made all calls of such a signature *owes* the next one: its
local calls before that are needed, too, and need not wait for the work before them. A LEAD of a thread that owes leads
through all coupled calls before it.

With right signatures PARTNER and WALK admit no coupled call that the incomplete ones do not need. So a PARTNER waits
for nothing, and a WALK only for a moment without a change. LEAD and SPIN may admit other calls: they come when nothing
has changed for longer, and the deadline ends what they cannot. Where a device is busy and no incomplete launch is
known, the decision is *blind*: every call looks local, and only ranks with idle devices walk.

No I/O, no clock. The caller looks at all agents, numbers the look, and does what `decide` says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gcr.standstill.messages import COUPLING, LOCAL, Admission, Incomplete, Parked, Report, Tier


class Rules(Struct, frozen=True):
    """Times in seconds, and calls a thread.

    still: so long nothing may have changed before calls are admitted; `blind_still` without signatures · settle: the
    same before a WALK with signatures, and after an admission · look: between two looks
    """

    still: float = 0.005
    blind_still: float = 0.02
    longest_still: float = 0.64
    settle: float = 0.001
    look: float = 0.0004
    helper_calls: int = 64
    walk: int = 16
    batch: int = 64
    longest_walk: int = 1024
    longest_spin: int = 64


class Done(Struct, frozen=True):
    """Every rank stands still, by reports newer than the last admission."""


class Wait(Struct, frozen=True):
    """Look again at `until`, on the caller's clock."""

    until: float


class Admit(Struct, frozen=True):
    """furthest: how many calls of each signature any rank may make, all told: a rank that waits has made so many."""

    admissions: tuple[Admission, ...]
    furthest: Mapping[int, int] = MappingProxyType({})

    @property
    def tier(self) -> Tier:
        """The tier of all but the helpers' admissions."""
        return max(each.tier for each in self.admissions)


class ReleaseCaptures(Struct, frozen=True):
    """Open all gates until no rank captures a stream, then begin again.

    A capture with collectives needs all ranks, and the part that is missing may come after a capture.
    """


class Cause(Struct, frozen=True):
    """Why ranks did not come to a standstill.

    incomplete: launches that wait for other ranks, by rank · absent: ranks in their own code · in_flight: ranks with
    calls inside the driver · busy: ranks whose devices work · capturing: ranks that capture a stream
    """

    incomplete: tuple[tuple[int, Incomplete], ...] = ()
    absent: tuple[int, ...] = ()
    in_flight: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()
    capturing: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.told("process {}".format)

    def told(self, name: Callable[[int], str]) -> str:
        """Returns the causes in words. `name`: of a rank."""
        parts = [
            f"{name(rank)} waits in {one.kernel or hex(one.signature)} on stream {one.stream:#x}"
            for rank, one in self.incomplete
        ]
        parts += [f"{name(rank)} has calls in its driver" for rank in self.in_flight]
        parts += [f"the device of {name(rank)} is busy" for rank in self.busy]
        parts += [f"{name(rank)} captures a stream" for rank in self.capturing]
        parts += [f"{name(rank)} is in its own code" for rank in self.absent]
        return "; ".join(parts)


class Late(Struct, frozen=True):
    """The deadline has passed: open all gates."""

    cause: Cause


Step = Done | Wait | Admit | ReleaseCaptures | Late


class Past(Struct, frozen=True):
    """The findings that earlier steps leave to the next.

    admitted: the last look before the last admission · settled: when that admission had been made · walk: walks since
    a coupled call was admitted · batches: how often coupled calls were admitted · spin: calls of the next SPIN ·
    served: thread of the last PARTNER admission · ahead, turns: the ranks that were busy at the last walk, and how
    often these changed
    """

    deadline: float
    admitted: int = 0
    settled: float = float("-inf")
    walk: int = 0
    batches: int = 0
    spin: int = 1
    served: tuple[int, int] | None = None
    ahead: frozenset[int] = frozenset()
    turns: int = 0

    def after(self, step: Admit, reports: Sequence[Report], now: float) -> "Past":
        """Returns the past of the next decision. `reports`: those that led to the step, which ended `now`."""
        served = [(each.rank, each.thread) for each in step.admissions if each.tier == Tier.PARTNER]
        ahead = frozenset(report.rank for report in reports if report.busy)
        spins, walks, couples = (step.tier in tiers for tiers in ((Tier.SPIN,), (Tier.WALK,), COUPLING))
        return replace(
            self,
            admitted=max(self.admitted, *(report.look for report in reports)),
            settled=self.settled if spins else now,
            walk=0 if couples else self.walk + walks,
            batches=self.batches + couples,
            spin=self.spin * 2 if spins else 1,
            served=served[-1] if served else self.served,
            ahead=ahead if walks else self.ahead,
            turns=self.turns + (walks and ahead != self.ahead),
        )


Place = tuple[Report, Parked]


def decide(reports: Sequence[Report], past: Past, now: float, rules: Rules = Rules()) -> Step:  # noqa: B008 - frozen
    """Returns the next step. `reports`: the newest of every rank."""
    fresh = all(report.look > past.admitted for report in reports)
    if fresh and all(report.at_rest for report in reports):
        return Done()
    if now >= past.deadline:
        return Late(cause_of(reports))
    if any(report.captures for report in reports):
        return ReleaseCaptures()
    if not fresh:
        return Wait(now)
    blind = is_blind(reports)
    walk_at, still_at = _times(reports, past, rules, blind)
    chosen = _made(Tier.PARTNER, _partners(reports), _batch(past, rules))
    if not chosen and now >= walk_at:
        chosen = _walk(reports, past, rules, blind)
    if not chosen and now >= still_at:
        chosen = _on_trust(reports, past, rules, blind)
        if not chosen and any(report.held for report in reports):
            return ReleaseCaptures()
    if admissions := (*_helpers(reports, rules), *chosen):
        return Admit(admissions, furthest_of(reports))
    return Wait(max(walk_at if now < walk_at else still_at, now + rules.look))


def furthest_of(reports: Sequence[Report]) -> Mapping[int, int]:
    """Returns the most calls that a rank which waits in a signature has made of it."""
    furthest: dict[int, int] = {}
    for report in reports:
        for one in report.incomplete:
            furthest[one.signature] = max(one.launched, furthest.get(one.signature, 0))
    return furthest


def owes(report: Report, parked: Parked, furthest: Mapping[int, int]) -> bool:
    """Tells whether the thread has made all calls so far of a signature that others wait in, having made more."""
    return any(one.thread == parked.thread and one.launched < furthest.get(one.signature, 0) for one in report.made)


def is_blind(reports: Sequence[Report]) -> bool:
    """Tells whether no rank knows of an incomplete launch."""
    return not any(report.incomplete for report in reports)


def cause_of(reports: Sequence[Report]) -> Cause:
    def ranks(matches: Callable[[Report], object]) -> tuple[int, ...]:
        return tuple(report.rank for report in reports if matches(report))

    return Cause(
        incomplete=tuple((report.rank, one) for report in reports for one in report.incomplete),
        absent=ranks(lambda report: report.in_own_code),
        in_flight=ranks(lambda report: report.in_flight),
        busy=ranks(lambda report: report.busy and not report.incomplete),
        capturing=ranks(lambda report: report.captures),
    )


def _times(reports: Sequence[Report], past: Past, rules: Rules, blind: bool) -> tuple[float, float]:
    """Returns from when on local calls may be admitted, and from when on any.

    A change that an admission has made itself is waited for only shortly. Blind, a kernel that takes longer than the
    wait looks like a rank that is ahead; so the wait doubles with every fourth turn.
    """
    last = max(report.changed_at for report in reports)
    if last <= past.settled:
        return past.settled + rules.settle, past.settled + rules.settle
    if blind:
        still_at = last + min(rules.longest_still, rules.blind_still * 2 ** (past.turns // 4))
        return still_at, still_at
    return last + rules.settle, last + rules.still


def _clear(reports: Sequence[Report], blind: bool) -> list[Place]:
    return [(rank, one) for rank, one in _at_gates(reports) if one.clear and not (blind and rank.busy)]


def _at_gates(reports: Sequence[Report]) -> list[Place]:
    return [(report, parked) for report in reports for parked in report.parked if not parked.helper]


def _walk(reports: Sequence[Report], past: Past, rules: Rules, blind: bool) -> tuple[Admission, ...]:
    calls = min(rules.longest_walk, rules.walk * 2**past.walk) // (rules.walk if blind else 1)
    owing = _local(_owing(reports))
    others = [place for place in _local(_clear(reports, blind)) if place not in owing]
    return _made(Tier.WALK, owing, max(calls, _batch(past, rules))) + _made(Tier.WALK, others, calls)


def _owing(reports: Sequence[Report]) -> list[Place]:
    furthest = furthest_of(reports)
    return [(report, one) for report, one in _at_gates(reports) if owes(report, one, furthest)]


def _on_trust(reports: Sequence[Report], past: Past, rules: Rules, blind: bool) -> tuple[Admission, ...]:
    """Returns admissions that ranks may not need to come together."""
    batch = _batch(past, rules)
    if owing := _made(Tier.LEAD, _owing(reports), batch, leads=True):
        return owing
    places = _at_gates(reports)
    leader = _leader(_clear(reports, blind), past.served)
    return _made(Tier.LEAD, leader) or _made(Tier.SPIN, _local(places) or places, min(rules.longest_spin, past.spin))


def _made(tier: Tier, places: Sequence[Place], calls: int = 1, leads: bool = False) -> tuple[Admission, ...]:
    return tuple(Admission(tier, report.rank, one.thread, one.signature, calls, leads) for report, one in places)


def _batch(past: Past, rules: Rules) -> int:
    """Returns the calls of a batch: ever more, since a wrong signature may have one go too far."""
    return min(rules.longest_walk, rules.batch << past.batches)


def _helpers(reports: Sequence[Report], rules: Rules) -> tuple[Admission, ...]:
    if not any(report.busy for report in reports):
        return ()
    helpers = [(report, one) for report in reports for one in report.parked if one.helper]
    return _made(Tier.HELPER, helpers, rules.helper_calls)


def _partners(reports: Sequence[Report]) -> list[Place]:
    """Returns coupled calls of which a rank that waits has made more, of each signature one in a rank.

    Where it has made as many, the next one belongs to a later collective.
    """
    furthest = furthest_of(reports)
    found: dict[tuple[int, int], Place] = {}
    for report in reports:
        for parked in report.parked:
            if parked.launched < furthest.get(parked.signature, 0) and not parked.helper:
                found.setdefault((report.rank, parked.signature), (report, parked))
    return list(found.values())


def _local(places: Sequence[Place]) -> list[Place]:
    return [place for place in places if place[1].signature == LOCAL]


def _leader(places: Sequence[Place], served: tuple[int, int] | None) -> list[Place]:
    """Returns one of these: the thread that a PARTNER admission went to last, or the first."""

    def by_service() -> Iterator[Place]:
        yield from (place for place in places if (place[0].rank, place[1].thread) == served)
        yield from places

    return list(islice(by_service(), 1))
