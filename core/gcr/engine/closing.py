"""Brings the processes of a job to one standstill: looks at their agents, and does what is decided.

It closes the gates of all processes at once. The agent of one process cannot tell which other one has still to make a
call.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, groupby
from typing import TypeVar

from msgspec import Struct, field

from gcr.engine.side_by_side import ALL, side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import Stuck
from gcr.peers.gate import GatePeer
from gcr.protocol.agentwire import GateReply
from gcr.protocol.wire import SEVERAL_THREADS, ParkedFlag, WalkKind
from gcr.standstill.decision import Admit, Done, Late, Past, ReleaseCaptures, Rules, Wait, decide, is_blind
from gcr.standstill.messages import COUPLING, Admission, Incomplete, Made, Parked, Report, Tier

log = logging.getLogger("gcr.engine")

Result = TypeVar("Result")

PATIENCE = 0.002  # seconds for each call of a walk
CAPTURING = 0.005  # seconds between two looks at captures that may end


class Closing(Struct):
    """One standstill under way. `left`: returns the seconds until the deadline; raises where the caller gave up."""

    job: str
    targets: Sequence[Target]
    left: Callable[[], float]
    rules: Rules = field(default_factory=Rules)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    reports: list[Report] = field(default_factory=list)
    tiers: Counter[Tier] = field(default_factory=Counter)  # of the admissions so far
    looks: int = 0

    def run(self) -> None:
        """Returns with every process quiesced. Else opens all gates, and raises Stuck, PeerGone, DriverError …"""
        began = self.now()
        with self.or_open_all():
            while not self.closed():
                self.end_captures()
            self.quiesce()
        self.tell(began)

    def come_alone(self, patience: float) -> bool:
        """Closes all gates, and admits only calls that are needed whatever ranks of other nodes have made.

        Returns False where that leads to no standstill, after `patience` seconds at most. The gates stay closed.
        """
        self.close()
        end = self.now() + patience
        past = Past(deadline=math.inf)
        for number in count(1):
            self.left()
            self.looks += 1
            self.reports = self.look(number)
            step = decide(self.reports, past, self.now(), self.rules)
            if isinstance(step, Done):
                return True
            if self.now() >= end or (isinstance(step, Wait) and self._nothing_leads_on(past)):
                return False
            if isinstance(step, Wait):
                self.sleep(max(0.0, min(step.until, end) - self.now()))
            elif isinstance(step, Admit) and step.tier <= Tier.WALK and not is_blind(self.reports):
                self.admit(step)
                past = past.after(step, self.reports, self.now())
            else:
                return False
        raise AssertionError("count() does not end")

    def _nothing_leads_on(self, past: Past) -> bool:
        """Tells whether a rank waits for a call, and nothing has changed for as long as to admit one on trust."""
        if is_blind(self.reports):
            return False
        last = max(past.settled, *(report.changed_at for report in self.reports))
        return self.now() >= last + self.rules.still

    def quiesce(self) -> None:
        """Has every process synchronise once more. Their devices are idle. Raises Stuck, PeerGone, DriverError …"""
        self._all(lambda target: target.process.agent.quiesce(target.transaction, self.left(), 0))

    @contextmanager
    def or_open_all(self) -> Iterator[None]:
        """Opens all gates if the block fails."""
        try:
            yield
        except BaseException:
            self.open_all()
            raise

    def tell(self, began: float) -> None:
        """Writes to the log how the job came to the standstill."""
        took = (self.now() - began) * 1000
        tiers = "".join(f", {number} {tier.name}" for tier, number in sorted(self.tiers.items()))
        text = "job %s: stands still after %.1f ms, %d admissions in %d looks%s"
        log.info(text, self.job, took, self.admitted, self.looks, tiers)

    @property
    def admitted(self) -> int:
        """Returns the number of admissions so far."""
        return self.tiers.total()

    def closed(self) -> bool:
        """Closes all gates and admits calls. Returns False where captures must end first. Raises Stuck."""
        self.close()
        past = Past(deadline=self.now() + self.left())
        for number in count(1):
            self.left()
            self.looks += 1
            self.reports = self.look(number)
            match decide(self.reports, past, self.now(), self.rules):
                case Done():
                    return True
                case ReleaseCaptures():
                    return False
                case Late(cause=cause):
                    raise Stuck(f"the job did not come to a standstill: {cause}", hint="docs/troubleshooting.md#stuck")
                case Admit() as step:
                    self.admit(step)
                    past = past.after(step, self.reports, self.now())
                case Wait(until=until):
                    self.sleep(max(0.0, until - self.now()))
        raise AssertionError("count() does not end")

    def look(self, number: int) -> list[Report]:
        return self._all(partial(self._report, number))

    def _report(self, number: int, target: Target) -> Report:
        return report_of(target.pid, number, gate_of(target).look(), self.now())

    def admit(self, step: Admit) -> None:
        """Has each process admit its part; several threads of one, one after another."""
        by_rank = groupby(sorted(step.admissions, key=lambda each: each.rank), key=lambda each: each.rank)
        side_by_side([partial(self._admit, rank, list(of), step.furthest) for rank, of in by_rank], ALL)
        self.tiers.update(each.tier for each in step.admissions)

    def _admit(self, rank: int, admissions: Iterable[Admission], furthest: Mapping[int, int]) -> None:
        gate = gate_of(next(each for each in self.targets if each.pid == rank))
        for each in admissions:
            for calls, kind in parts_of(each):
                if gate.admit(each.thread, calls, PATIENCE, kind, furthest) < calls:
                    break

    def end_captures(self) -> None:
        """Opens all gates until no process captures a stream. Raises Stuck at the deadline."""
        self.open()
        end = self.now() + self.left()
        self.sleep(CAPTURING)
        while any(self.captures().values()):
            if self.now() >= end or self.left() <= 0:
                raise Stuck("a capture did not end", hint="docs/troubleshooting.md#stuck")
            self.sleep(CAPTURING)

    def close(self) -> None:
        """Closes all gates, and waits for nothing."""
        self._all(lambda target: gate_of(target).close())

    def open(self) -> None:
        """Opens all gates that `close` has closed; exports stay."""
        self._all(lambda target: gate_of(target).open())

    def captures(self) -> Mapping[int, int]:
        """Returns the number of streams that each process captures, with its gate open."""
        found = self._all(lambda target: target.process.agent.status().status.captures)
        return {target.pid: captures for target, captures in zip(self.targets, found, strict=True)}

    def open_all(self) -> None:
        """Opens every gate, of processes that are behind first: what they do then brings the others on."""
        busy = {report.rank for report in self.reports if report.busy}
        for target in sorted(self.targets, key=lambda each: each.pid in busy):
            if not target.process.ended:
                quietly("open the gate", target.resume)

    def _all(self, ask: Callable[[Target], Result]) -> list[Result]:
        return side_by_side([partial(ask, target) for target in self.targets], ALL)


def parts_of(one: Admission) -> Iterator[tuple[int, WalkKind]]:
    """Yields the calls of an admission, and how they are chosen. A shim of an earlier version makes none too many."""
    if one.tier == Tier.WALK:
        yield one.calls, WalkKind.LOCAL
    elif one.tier in COUPLING:
        yield 1, WalkKind.NOT
        if one.calls > 1:
            yield one.calls - 1, WalkKind.THROUGH if one.leads else WalkKind.OWED
    else:
        yield one.calls, WalkKind.NOT


def gate_of(target: Target) -> GatePeer:
    return GatePeer(target.process.agent, target.transaction)


def report_of(rank: int, number: int, reply: GateReply, heard: float) -> Report:
    """Returns an agent's reply as a report. `heard`: when it came."""
    gate = reply.gate
    parked = tuple(
        Parked(
            thread=one.thread,
            signature=one.signature,
            clear=bool(one.flags & ParkedFlag.CLEAR),
            helper=bool(one.flags & ParkedFlag.HELPER),
            launched=one.launched,
        )
        for one in reply.parked
    )
    incomplete = tuple(Incomplete(one.signature, one.stream, one.launched, one.kernel) for one in reply.incomplete)
    made = tuple(
        Made(one.signature, one.launched, None if one.thread == SEVERAL_THREADS else one.thread) for one in reply.made
    )
    changed_at = heard - gate.unchanged_us / 1e6
    return Report(
        rank, number, bool(gate.busy), gate.in_flight, gate.captures, changed_at, parked, incomplete, gate.held, made
    )
