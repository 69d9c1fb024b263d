"""The coordinator leads the ranks of all nodes to one standstill: answers in, orders out; no socket and no clock.

If all ranks of every node come to rest by themselves, none of this is needed. If a rank does not, its kernel may wait
for a call that the gate of another node holds. Then the decision for one machine (gcr.standstill.decision) is made
here, on the reports of all ranks:

    look       every node says what its ranks look like; then it is decided
    admit      nodes admit the calls that were decided on; once all have, every node looks again
    captures   every node opens its gates until no rank captures a stream; then all close them, and look again

While nothing leads on, looks come at ever longer pauses. The caller ends what takes too long.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.cluster.messages import Direct, Obeyed
from gcr.standstill.decision import Admit, Done, Past, ReleaseCaptures, Rules, Wait, cause_of, decide
from gcr.standstill.messages import Lead, Report

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05  # between two looks without an admission
CAPTURING_S = 0.005  # between two looks at captures that may end
MOST_ORDERS = 2000  # to each node, at most
FOREVER = float("inf")


class Stage(StrEnum):
    ALONE = "alone"  # every node so far has come to rest by itself
    WANTED = "wanted"  # once every node waits
    LOOKING = "looking"
    ADMITTING = "admitting"
    CAPTURING = "capturing"  # the gates are open
    STILL = "still"
    GIVEN_UP = "given_up"


class Rank(Struct, frozen=True):
    """A process on a node."""

    node: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} of node {self.node}"


class Standstill(Struct):
    """One standstill of the ranks of these nodes. Call `begin` once all wait, then `on` with each answer.

    orders: given so far, each to several nodes · number: of the latest look
    """

    nodes: Sequence[str]
    rules: Rules = field(default_factory=Rules)
    stage: Stage = Stage.ALONE
    orders: int = 0
    number: int = 0
    _past: Past = field(default_factory=lambda: Past(deadline=FOREVER))
    _step: Admit | None = None
    _pause: float = SHORTEST_PAUSE_S
    _awaited: set[str] = field(default_factory=set)
    _reports: dict[str, tuple[Report, ...]] = field(default_factory=dict)
    _ranks: dict[Rank, int] = field(default_factory=dict)  # their numbers in the decision

    @property
    def is_still(self) -> bool:
        """Returns whether every rank of every node stands still, by reports newer than the last admission."""
        return self.stage is Stage.STILL

    @property
    def is_under_way(self) -> bool:
        """Returns whether ranks are to be led, or are led."""
        return self.stage not in (Stage.ALONE, Stage.STILL, Stage.GIVEN_UP)

    @property
    def cause(self) -> str:
        """Returns in words why the ranks did not come to a standstill, by what the nodes have said last."""
        names = {number: str(rank) for rank, number in self._ranks.items()}
        return cause_of(self._all_reports()).told(names.__getitem__)

    def want(self) -> None:
        """Notes that the ranks of a node do not come to rest by themselves."""
        if self.stage is Stage.ALONE:
            self.stage = Stage.WANTED

    def begin(self) -> list[Direct]:
        """Returns the first orders; none where it has begun before."""
        return self._look(0.0) if self.stage is Stage.WANTED else []

    def on(self, answer: Obeyed) -> list[Direct]:
        """Returns the orders that follow from an answer: none before every node that is awaited has answered."""
        if answer.number != self.orders or answer.node not in self._awaited:
            return []
        self._awaited.discard(answer.node)
        if self.stage is not Stage.ADMITTING:
            self._reports[answer.node] = tuple(self._numbered(answer, each) for each in answer.ranks)
        return [] if self._awaited else self._follow(answer.at)

    def _follow(self, now: float) -> list[Direct]:
        if self.orders >= MOST_ORDERS:
            self.stage = Stage.GIVEN_UP
            return []
        if self.stage is Stage.CAPTURING:
            return self._after_captures(now)
        if self._step:
            self._past = self._past.after(self._step, self._all_reports(), now)
            self._step, self._pause = None, SHORTEST_PAUSE_S
            return self._look(now)
        return self._decided(now)

    def _decided(self, now: float) -> list[Direct]:
        match decide(self._all_reports(), self._past, now, self.rules):
            case Done():
                self.stage = Stage.STILL
                return []
            case Admit() as step:
                return self._admit(step, now)
            case ReleaseCaptures():
                self.stage = Stage.CAPTURING
                return self._order(dict.fromkeys(self.nodes, Lead(closed=False)), now)
            case Wait(until=until):
                later = max(until, now + self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
                return self._look(later)
        raise AssertionError("a standstill without a deadline is not late")

    def _after_captures(self, now: float) -> list[Direct]:
        if any(report.captures for report in self._all_reports()):
            return self._order(dict.fromkeys(self.nodes, Lead(closed=False)), now + CAPTURING_S)
        self._past = Past(deadline=FOREVER, admitted=self.number)
        return self._look(now)

    # ---- orders -----------------------------------------------------------------------------------------------------

    def _look(self, at: float) -> list[Direct]:
        self.stage = Stage.LOOKING
        self.number += 1
        return self._order(dict.fromkeys(self.nodes, Lead()), at)

    def _admit(self, step: Admit, at: float) -> list[Direct]:
        self.stage, self._step = Stage.ADMITTING, step
        ranks = {number: rank for rank, number in self._ranks.items()}
        furthest = tuple(sorted(step.furthest.items()))
        by_node = groupby(
            sorted(step.admissions, key=lambda each: ranks[each.rank].node), key=lambda each: ranks[each.rank].node
        )
        leads = {
            node: Lead(admissions=tuple(replace(each, rank=ranks[each.rank].pid) for each in of), furthest=furthest)
            for node, of in by_node
        }
        return self._order(leads, at)

    def _order(self, leads: Mapping[str, Lead], at: float) -> list[Direct]:
        self.orders += 1
        self._awaited = {*leads}
        return [Direct(node, self.orders, at, lead) for node, lead in leads.items()]

    # ---- reports ----------------------------------------------------------------------------------------------------

    def _all_reports(self) -> list[Report]:
        return [report for reports in self._reports.values() for report in reports]

    def _numbered(self, answer: Obeyed, report: Report) -> Report:
        """Returns a report as the decision needs it. Its last change seems later than it was, by the answer's way."""
        number = self._ranks.setdefault(Rank(answer.node, report.rank), len(self._ranks))
        return replace(report, rank=number, look=self.number, changed_at=answer.at + report.changed_at)
