"""Carries out a coordination: each order is a request to a node's daemon, on a thread of its own.

The threads put what they hear in one inbox; the caller's thread alone asks for the next orders.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.barriers import Barrier
from gcr.api.clusters import ClusterReport, NodeReport
from gcr.api.listings import JobList
from gcr.api.partrequests import KeepPartRequest, PartsRequest
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cluster.coordination import Aim, Coordination, Task
from gcr.cluster.images import root_of
from gcr.cluster.messages import (
    AWAY,
    UNKNOWN,
    Ask,
    Begin,
    Came,
    Deadline,
    Direct,
    Done,
    Event,
    Failed,
    Finish,
    GiveUp,
    Go,
    Keep,
    Kept,
    Late,
    Left,
    Lost,
    Obeyed,
    Order,
    Outcome,
    Place,
    Restore,
    Stands,
    Stopped,
    Wait,
)
from gcr.cluster.nodes import STORE_S, Link
from gcr.clustererrors import NodeUnreachable, said_by_node
from gcr.cuterrors import CutGivenUp
from gcr.cutroot import Root, RootPart, image_named, newest_first, part_name
from gcr.errors import DaemonUnavailable, GcrError, PeerGone, Refused, UsageError, typed
from gcr.imageerrors import WrongKey
from gcr.protocol.jsonbody import error_to_json

log = logging.getLogger(__name__)

GRACE_S = 30.0
ANSWERS_S = 30.0  # for a daemon to be there, and for its job to come to rest
ABSENT_S = 2.0  # a job that a new daemon does not know may be about to be registered again
LOOK_S = 0.05
NEWER_S = 0.001

Transfer = CheckpointRequest | RestoreRequest
Report = CheckpointReport | RestoreReport


def new_cut() -> str:
    """Returns the id of a cut: 32 hexadecimal digits at random."""
    return secrets.token_hex(16)


class Heard(Struct):
    """The words of nodes. `errors`: the first one of each, in the order they came. `cuts`: of suspended parts.

    parts: of the image that is being made · images: the names of those that stopped parts are in
    apart: why ranks that were led did not come to one standstill, in words
    """

    reports: dict[str, Report] = field(default_factory=dict)
    errors: dict[str, GcrError] = field(default_factory=dict)
    cuts: set[str] = field(default_factory=set)
    apart: str = ""
    parts: dict[str, RootPart] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    root_text: str = ""  # of the image that is being made, once all parts are durable
    latest: float = 0.0  # the newest root of this image so far, seconds since the epoch

    def compose(self, request: Transfer, nodes: Iterable[str]) -> None:
        """Makes the root of the image, once."""
        if not self.root_text:
            image, cut = image_named(str(request.image)), str(request.cut)
            parts = tuple(self.parts[node] for node in nodes)
            created = max(time.time(), self.latest + NEWER_S)  # also where another coordinator's clock is ahead
            self.root_text = Root(image, cut, str(request.target), created, parts).to_text()


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
        coordination = Coordination.of(self.task, cut, [*self.links], _aim(self.request))
        orders = coordination.start()
        while not (orders and isinstance(orders[-1], Finish)):
            for order in orders:
                self._carry_out(order, coordination)
            orders = coordination.on(self._next())
        for order in orders[:-1]:
            self._carry_out(order, coordination)
        self.phases_s["end"] = time.monotonic() - self.began
        self._tell_standstill(coordination)
        return self._report(coordination, orders[-1].outcome)

    def _tell_standstill(self, coordination: Coordination) -> None:
        together = coordination.together
        if not together.orders:
            return
        log.info("cut %s: %d orders to lead all ranks: %s", coordination.cut, together.orders, together.stage)
        if not together.is_still:
            self.heard.apart = together.cause

    def _report(self, coordination: Coordination, outcome: Outcome) -> ClusterReport:
        cut = coordination.cut if self.task is Task.CHECKPOINT else next(iter(self.heard.cuts), "")
        return ClusterReport(
            job=str(self.request.target),
            image=image_named(self.request.image) if self.request.image else None,
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
                self._start(self._transfer, order.node, self._of_part(order.node))
            case Restore():
                self._start(self._transfer, order.node, self._alone(order))
            case Keep():
                self.heard.compose(self.request, self.links)
                self._start(self._keep, order.node)
            case Go():
                self._start(self._say, order.node, CutRequest(id=coordination.cut, barrier=order.barrier))
            case GiveUp():
                self._start(self._say, order.node, CutRequest(id=order.cut))
            case Direct():
                self._start(self._lead, order, coordination.cut)
            case Ask():
                self._start(self._ask, order.node)

    def _part(self, node: str) -> str | None:
        """Returns the name of a node's part, where there is an image."""
        return part_name(self.request.image, [*self.links].index(node)) if self.request.image else None

    def _of_part(self, node: str) -> Transfer:
        return replace(self.request, image=self._part(node))

    def _alone(self, order: Restore) -> RestoreRequest:
        """Returns the request for a part that waits for no other node."""
        image = (self.heard.images.get(order.node) or self._part(order.node)) if order.revives else None
        store = self.request.store if image else None
        return RestoreRequest(
            target=self.request.target, timeout=self.request.timeout, image=image, store=store, revive=image is not None
        )

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
        if wait is Wait.KEPT:
            return STORE_S
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
            error = said_by_node(typed(failure))
            log.info("node %s: %s", node, error.message, exc_info=not isinstance(failure, GcrError))
            self.heard.errors.setdefault(node, error)
            self._inbox.put(_failed(node, error))
        else:
            self._inbox.put(Done(node))

    def _came(self, node: str, barrier: Barrier) -> None:
        if barrier is Barrier.DURABLE and node not in self.heard.parts:
            self._start(self._durable, node)  # this thread brings the answers of the node
        else:
            self._inbox.put(Came(node, barrier))

    def _durable(self, node: str) -> None:
        """Asks for the facts of a part that is durable. After an error the part tells again that it waits."""
        request = self.request
        try:
            name, image = self._part(node), image_named(str(request.image))
            there = self.links[node].parts(PartsRequest(image=image, store=request.store)).parts
            part = next(each for each in there if each.image == name)
            self.heard.latest = max([self.heard.latest, *(root.created for each in there if (root := root_of(each)))])
            self.heard.parts[node] = RootPart(node, part.seal, part.bytes)
        except Exception as error:
            log.info("node %s: its part of image %s: %s", node, request.image, error)
        else:
            self._inbox.put(Came(node, Barrier.DURABLE))

    def _keep(self, node: str) -> None:
        try:
            word = KeepPartRequest(root=self.heard.root_text, part=str(self._part(node)), store=self.request.store)
            self.links[node].keep(word)
        except Exception as failure:
            error = typed(failure)
            log.info("node %s: %s", node, error.message, exc_info=not isinstance(failure, GcrError))
            self.heard.errors.setdefault(node, error)
            self._inbox.put(Failed(node))
        else:
            self._inbox.put(Kept(node))

    def _say(self, node: str, word: CutRequest) -> None:
        """Says a word to a part. An error is only logged: the part tells again that it waits, or gives up in time."""
        try:
            self.links[node].say(word)
        except Exception as error:
            log.info("node %s: cut %s, %s: %s", node, word.id, word.barrier or "given up", error)

    def _lead(self, order: Direct, cut: str) -> None:
        """Has a part obey. An error is only logged: the part says by its own request that it has given up."""
        time.sleep(max(0.0, order.at - time.monotonic()))
        try:
            ranks = self.links[order.node].lead(CutRequest(id=cut, lead=order.lead)).ranks
        except Exception as error:
            log.info("node %s: cut %s, order %d: %s", order.node, cut, order.number, error)
        else:
            self._inbox.put(Obeyed(order.node, order.number, time.monotonic(), ranks))

    def _ask(self, node: str) -> None:
        """Waits until the node's job is at rest, or held at a barrier."""
        began = time.monotonic()
        while time.monotonic() < began + ANSWERS_S:
            try:
                found = _standing(node, str(self.request.target), self.links[node].jobs())
                if found and found.place is Place.GONE:
                    found = self._stopped(node) or found
                if found and (found.place is not Place.GONE or time.monotonic() > began + ABSENT_S):
                    if found.place in AWAY:
                        self.heard.cuts.add(found.cut)
                    self._inbox.put(found)
                    return
            except Exception as error:
                log.info("node %s: %s", node, error)
            time.sleep(LOOK_S)
        self._inbox.put(Lost(node))

    def _stopped(self, node: str) -> Stands | None:
        """Returns where a job stands that is not there: in its part of an image, if it was stopped into that."""
        request = self.request
        if isinstance(request, CheckpointRequest) and not request.stop:
            return None
        try:
            answer = self.links[node].parts(PartsRequest(job=str(request.target), store=request.store))
        except WrongKey:  # an encrypted store has no parts
            return None
        whole = {each.image: root for each in answer.parts if each.whole and (root := root_of(each))}
        newest = next(iter(newest_first([*whole.values()])), None) if answer.stopped else None
        image = self._part(node) or (own_part(newest, node, whole) if newest else None)
        if image not in whole:
            return None
        self.heard.images[node] = image
        return Stands(node, Place.STOPPED, whole[image].cut)


def own_part(root: Root, node: str, there: Mapping[str, Root]) -> str | None:
    """Returns the name of a node's own part of a cut. Nodes that share a store have the parts of others there, too."""
    ranks = [rank for rank in range(len(root.parts)) if root.part(rank) in there]
    own = [rank for rank in ranks if root.parts[rank].node == node] or (ranks if len(ranks) == 1 else [])
    return root.part(own[0]) if own else None


def _aim(request: Transfer) -> Aim:
    if not isinstance(request, CheckpointRequest):
        return Aim(imaged=request.image is not None)
    if request.stop:
        return Aim(Place.STOPPED, imaged=True)
    return Aim(Place.RUNNING if request.leave_running else Place.SUSPENDED, imaged=request.image is not None)


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
