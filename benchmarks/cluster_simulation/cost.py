"""Measures the coordinator's own work, with gcr's own code: seconds of a processor for a word or an order."""

import threading
import time
from statistics import median
from typing import cast

from msgspec import Struct

from cluster_simulation.node import CUT
from gcr.api.answers import Answer
from gcr.api.barriers import BEFORE_SUSPENDED, Barrier
from gcr.api.listings import JobList
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cluster.coordination import Coordination, Task
from gcr.cluster.messages import Came, Done, Finish, Lost
from gcr.cluster.nodes import Told
from gcr.cluster.running import Running

WORDS, ORDERS = 3, 3  # of a node, in a cut without failures
TIMEOUT_S = 300.0


class Decided(Struct, frozen=True):
    """Seconds of the decisions. `word`: an event, the mean · slowest: that decides for all nodes at once

    undone: all of a cut that is given up, for each node
    """

    nodes: int
    word: float
    slowest: float
    undone: float


def decided(nodes: int, times: int = 5) -> Decided:
    """Returns medians."""
    names = [f"node-{number}" for number in range(nodes)]
    word, slowest, undone = (median(work(names) for _ in range(times)) for work in (_decide, _pass, _undo))
    return Decided(nodes, word / nodes / WORDS, slowest, undone / nodes)


def _decide(names: list[str]) -> float:
    """Returns seconds of all decisions of a cut."""
    coordination = _begun(names)
    events = [Came(name, barrier) for barrier in BEFORE_SUSPENDED for name in names] + [Done(name) for name in names]
    began = time.thread_time()
    for event in events:
        orders = coordination.on(event)
    took = time.thread_time() - began
    if not isinstance(orders[-1], Finish):
        raise AssertionError("it is not over")
    return took


def _pass(names: list[str]) -> float:
    """Returns seconds to let all pass a barrier, once the last one has come."""
    coordination = _begun(names)
    for name in names[1:]:
        coordination.on(Came(name, Barrier.ADMITTED))
    began = time.thread_time()
    coordination.on(Came(names[0], Barrier.ADMITTED))
    return time.thread_time() - began


def _begun(names: list[str]) -> Coordination:
    coordination = Coordination.of(Task.CHECKPOINT, CUT, names)
    coordination.start()
    return coordination


def _undo(names: list[str]) -> float:
    """Returns seconds to lead all back where one is lost as the last one is to come."""
    coordination = _begun(names)
    for name in names[1:]:
        coordination.on(Came(name, Barrier.ADMITTED))
    began = time.thread_time()
    coordination.on(Lost(names[0]))
    coordination.on(Lost(names[0]))
    for name in names[1:]:
        coordination.on(Done(name))
    return time.thread_time() - began


class AtOnce:
    """A node that does all at once, in this process: what is left is the work of `Running` and its threads."""

    def __init__(self) -> None:
        self._may_pass = {barrier: threading.Event() for barrier in BEFORE_SUSPENDED}

    def greet(self) -> None: ...

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        for barrier, passed in self._may_pass.items():
            told(barrier)
            passed.wait(limit)
        return cast(CheckpointReport, None)

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport:
        raise NotImplementedError

    def say(self, word: CutRequest) -> None:
        self._may_pass[cast(Barrier, word.barrier)].set()

    def jobs(self) -> JobList:
        raise NotImplementedError

    def close(self) -> None: ...


def carried(nodes: int, times: int = 5) -> float:
    """Returns seconds for each word and order of a cut that gcr.cluster.running carries out, no message sent."""
    return median(_carry(nodes) for _ in range(times)) / nodes / (WORDS + ORDERS)


def _carry(nodes: int) -> float:
    links = {f"node-{number}": AtOnce() for number in range(nodes)}
    request = CheckpointRequest(target="job", cut=CUT, timeout=TIMEOUT_S)
    began = time.process_time()
    report: Answer = Running(Task.CHECKPOINT, links, request, TIMEOUT_S, TIMEOUT_S).run()
    took = time.process_time() - began
    if "done" not in str(report):
        raise AssertionError(report)
    return took
