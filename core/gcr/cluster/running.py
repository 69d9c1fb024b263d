"""Carries out a coordination: each order is a request to a node's daemon, on a thread of its own.

The threads put what they hear in one inbox; the caller's thread alone asks for the next orders.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from msgspec import Struct, field

from gcr.api.barriers import Barrier
from gcr.api.clusters import ClusterReport, NodeReport
from gcr.api.listings import JobList
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cluster.coordination import Coordination, Task
from gcr.cluster.messages import (
    UNKNOWN,
    Ask,
    Begin,
    Came,
    Deadline,
    Done,
    Event,
    Failed,
    Finish,
    GiveUp,
    Go,
    Late,
    Left,
    Lost,
    Order,
    Outcome,
    Place,
    Restore,
    Stands,
    Stopped,
    Wait,
)
from gcr.cluster.nodes import Link
from gcr.clustererrors import NodeUnreachable
from gcr.cuterrors import CutGivenUp
from gcr.errors import DaemonUnavailable, GcrError, PeerGone, Refused, UsageError, typed
from gcr.protocol.jsonbody import error_to_json

log = logging.getLogger(__name__)

GRACE_S = 30.0
ANSWERS_S = 30.0  # for a daemon to be there, and for its job to come to rest
ABSENT_S = 2.0  # a job that a new daemon does not know may be about to be registered again
LOOK_S = 0.05

Transfer = CheckpointRequest | RestoreRequest
Report = CheckpointReport | RestoreReport


def new_cut() -> str:
    """Returns the id of a cut: 32 hexadecimal digits at random."""
    return secrets.token_hex(16)


class Heard(Struct):
    """The words of nodes. `errors`: the first one of each, in the order they came. `cuts`: of suspended parts."""

    reports: dict[str, Report] = field(default_factory=dict)
    errors: dict[str, GcrError] = field(default_factory=dict)
    cuts: set[str] = field(default_factory=set)


class Running(Struct):
    """One task over the nodes of a job. `still_s`: seconds that a node may stand still for the others.

    grace_s: seconds beyond `timeout`, for a node to take back what it was to do, and to say so

    request: what each node is asked for; of a recovery, the restore of its part
    """

    task: Task
    links: Mapping[str, Link]
    request: Transfer
    timeout: float
    still_s: float
    grace_s: float = GRACE_S
    heard: Heard = field(default_factory=Heard)
    phases_s: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    began: float = field(default_factory=time.monotonic)
    _inbox: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    _late: tuple[int, float] = (0, 0.0)  # the number of the wait under way, and its end

    def run(self) -> ClusterReport:
        """Returns once every node has come to rest, or is silent. Ctrl-C gives the cut up first."""
        cut = self.request.cut or ""
        coordination = Coordination.of(self.task, cut, [*self.links])
        orders = coordination.start()
        while not (orders and isinstance(orders[-1], Finish)):
            for order in orders:
                self._carry_out(order, coordination)
            orders = coordination.on(self._next())
        for order in orders[:-1]:
            self._carry_out(order, coordination)
        self.phases_s["end"] = time.monotonic() - self.began
        return self._report(coordination, orders[-1].outcome)

    def _report(self, coordination: Coordination, outcome: Outcome) -> ClusterReport:
        cut = coordination.cut if self.task is Task.CHECKPOINT else next(iter(self.heard.cuts), "")
        return ClusterReport(
            job=str(self.request.target),
            cut=(cut or None) if len(self.heard.cuts) < 2 else None,
            outcome=outcome.value,
            nodes=tuple(self._of_node(node, place) for node, place in coordination.places.by_node.items()),
            phases_s=self.phases_s,
        )

    def _of_node(self, node: str, place: Place) -> NodeReport:
        error = self.heard.errors.get(node)
        told = None if error is None else error_to_json(error)
        known = Place.SILENT if place in UNKNOWN else place
        return NodeReport(node=node, place=known.value, report=self.heard.reports.get(node), error=told)

    def _next(self) -> Event:
        number, end = self._late
        try:
            return self._inbox.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            return Late(number)
        except KeyboardInterrupt:
            self.interrupted = True
            return Stopped()

    def _carry_out(self, order: Order, coordination: Coordination) -> None:
        match order:
            case Deadline():
                self._mark(coordination)
                self._late = (order.number, time.monotonic() + self._seconds(order.wait))
            case Begin():
                self._start(self._transfer, order.node, self.request)
            case Restore():
                alone = RestoreRequest(target=self.request.target, timeout=self.request.timeout)
                self._start(self._transfer, order.node, alone)
            case Go():
                self._start(self._say, order.node, CutRequest(id=coordination.cut, barrier=order.barrier))
            case GiveUp():
                self._start(self._say, order.node, CutRequest(id=order.cut))
            case Ask():
                self._start(self._ask, order.node)

    def _mark(self, coordination: Coordination) -> None:
        """Keeps the time at which all nodes had come to a barrier."""
        passed = coordination.barriers[: coordination.passed]
        if passed and passed[-1].value not in self.phases_s:
            self.phases_s[passed[-1].value] = time.monotonic() - self.began

    def _seconds(self, wait: Wait) -> float:
        if wait is Wait.STILL:
            return self.still_s
        if wait is Wait.ANSWERS:
            return ANSWERS_S
        return self.timeout + (0.0 if wait is Wait.ADMITTED else self.grace_s)

    @staticmethod
    def _start(work: Callable[..., object], *arguments: object) -> None:
        Thread(target=work, args=arguments, name="gcr-node", daemon=True).start()

    # ---- on threads of their own ------------------------------------------------------------------------------------

    def _transfer(self, node: str, request: Transfer) -> None:
        told = partial(self._came, node)
        link, limit = self.links[node], self.timeout + self.grace_s
        try:
            if isinstance(request, CheckpointRequest):
                self.heard.reports[node] = link.checkpoint(request, told, limit)
            else:
                self.heard.reports[node] = link.restore(request, told, limit)
        except Exception as failure:
            error = typed(failure)
            log.info("node %s: %s", node, error.message, exc_info=not isinstance(failure, GcrError))
            self.heard.errors.setdefault(node, error)
            self._inbox.put(_failed(node, error))
        else:
            self._inbox.put(Done(node))

    def _came(self, node: str, barrier: Barrier) -> None:
        self._inbox.put(Came(node, barrier))

    def _say(self, node: str, word: CutRequest) -> None:
        """Says a word to a part. An error is only logged: the part tells again that it waits, or gives up in time."""
        try:
            self.links[node].say(word)
        except Exception as error:
            log.info("node %s: cut %s, %s: %s", node, word.id, word.barrier or "given up", error)

    def _ask(self, node: str) -> None:
        """Waits until the node's job is at rest, or held at a barrier."""
        began = time.monotonic()
        while time.monotonic() < began + ANSWERS_S:
            try:
                found = _standing(node, str(self.request.target), self.links[node].jobs())
                if found and (found.place is not Place.GONE or time.monotonic() > began + ABSENT_S):
                    if found.place is Place.SUSPENDED:
                        self.heard.cuts.add(found.cut)
                    self._inbox.put(found)
                    return
            except Exception as error:
                log.info("node %s: %s", node, error)
            time.sleep(LOOK_S)
        self._inbox.put(Lost(node))


_AT_REST = {
    "running": Place.RUNNING,
    "suspended": Place.SUSPENDED,
    "data_suspended": Place.SUSPENDED,
    "exited": Place.GONE,
    "lost": Place.GONE,
}


def _standing(node: str, job: str, answer: JobList) -> Stands | None:
    """Returns where the job stands on a node; None while it is on its way, or its processes have not come yet."""
    row = next((row for row in answer.jobs if row.job == job), None)
    if answer.awaited:
        return None
    if row is None:
        return Stands(node, Place.GONE)
    cut = row.cut.id if row.cut else ""
    if row.cut and row.cut.barrier:
        return Stands(node, Place.HELD, cut)
    place = None if row.changing else _AT_REST.get(row.state)
    return Stands(node, place, cut) if place else None


def _failed(node: str, error: GcrError) -> Event:
    if isinstance(error, PeerGone | DaemonUnavailable | NodeUnreachable):
        return Lost(node)
    if isinstance(error, CutGivenUp):
        return Failed(node, Left.TAKEN_BACK)
    return Failed(node, Left.REFUSED if isinstance(error, Refused | UsageError) else Left.UNKNOWN)
