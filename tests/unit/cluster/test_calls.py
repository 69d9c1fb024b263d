"""Tasks over nodes that are played: the requests that reach them, and the error that each outcome is told by."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace
from reported import checkpointed, job_info, restored

from gcr.api.answers import Ranks
from gcr.api.barriers import Barrier
from gcr.api.listings import CutInfo, JobList
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cluster.calls import Over, Result
from gcr.cluster.nodes import Told
from gcr.clustererrors import NodeUnreachable
from gcr.cuterrors import CutGivenUp
from gcr.errors import DeadlinePassed, DriverError, GcrError, Lost, NoRoom, PeerGone, WrongVersion
from gcr.standstill.messages import Incomplete, Report
from gcr.testing.machine import until

CUT = "ab" * 16
STUCK = Report(70, 0, True, 0, 0, -0.5, incomplete=(Incomplete(9, 0x10, 3, "reduce"),))


@dataclass
class Played:
    """A node. `fails`: raised when it has passed so many barriers · `state`: of its part now

    apart: its ranks do not come to rest by themselves · stuck: nor by orders
    """

    state: str = "running"
    cut: str | None = None
    fails: dict[int, GcrError] = field(default_factory=dict)
    greeting: GcrError | None = None
    dead: bool = False
    apart: bool = False
    stuck: bool = False
    said: list[str] = field(default_factory=list)
    _go: dict[Barrier, Event] = field(default_factory=lambda: {each: Event() for each in Barrier})
    _given_up: bool = False

    def greet(self) -> None:
        if self.greeting:
            raise self.greeting

    def checkpoint(self, request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        self.said.append(f"checkpoint {request.cut}")
        apart = (Barrier.APART,) if self.apart else ()
        self._through((Barrier.ADMITTED, *apart, Barrier.STILL), told)
        self.state, self.cut = "suspended", request.cut
        return checkpointed()

    def restore(self, request: RestoreRequest, told: Told, limit: float) -> RestoreReport:
        self.said.append(f"restore {request.cut}")
        self._through((Barrier.READY,) if request.cut else (), told)
        self.state, self.cut = "running", None
        return restored()

    def _through(self, barriers: tuple[Barrier, ...], told: Told) -> None:
        for number, barrier in enumerate(barriers):
            self._fail(number)
            told(barrier)
            assert self._go[barrier].wait(10)
            if self._given_up:
                raise CutGivenUp("the coordinator of the cut gave up")
        self._fail(len(barriers))

    def _fail(self, passed: int) -> None:
        if error := self.fails.pop(passed, None):
            raise error

    def say(self, word: CutRequest) -> None:
        self.said.append(word.barrier or "give up")
        self._given_up = self._given_up or word.barrier is None
        for barrier in (word.barrier,) if word.barrier else Barrier:
            self._go[barrier].set()

    def lead(self, word: CutRequest) -> Ranks:
        """Its ranks wait for others for ever, or have come to rest."""
        assert word.lead
        self.said.append("lead")
        if not self.stuck:
            return Ranks(ranks=(replace(STUCK, busy=False, incomplete=()),))
        return Ranks(ranks=(STUCK,))

    def jobs(self) -> JobList:
        if self.dead:
            raise PeerGone("it is dead")
        cut = CutInfo(id=self.cut, barrier=None) if self.cut else None
        return JobList(jobs=(job_info(job="train", state=self.state, cut=cut),))

    def close(self) -> None:
        self.said.append("closed")


def over(*nodes: Played) -> Over:
    return Over({str(number): node for number, node in enumerate(nodes)}, 5.0, 5.0)


def cut_of(*nodes: Played) -> Result:
    return over(*nodes).checkpoint(CheckpointRequest(target="train", cut=CUT, timeout=5.0))


def back_of(*nodes: Played) -> Result:
    return over(*nodes).restore(RestoreRequest(target="train", cut=CUT, timeout=5.0))


def told(done: Result) -> tuple[str, str | None, int]:
    return done.report.outcome, done.error and done.error.code, done.error.exit if done.error else 0


def test_each_node_is_told_go_twice_and_left_in_the_end():
    nodes = [Played(), Played()]
    done = cut_of(*nodes)
    assert told(done) == ("done", None, 0)
    assert [node.said for node in nodes] == [[f"checkpoint {CUT}", "admitted", "still", "closed"]] * 2
    assert (done.report.cut, [each.place for each in done.report.nodes]) == (CUT, ["suspended"] * 2)
    assert [*done.report.phases_s] == ["admitted", "still", "end"]


def test_ranks_that_need_each_other_are_led_to_the_standstill():
    nodes = [Played(apart=True), Played(apart=True)]
    assert told(cut_of(*nodes)) == ("done", None, 0)
    assert [node.said[1:-1] for node in nodes] == [["admitted", "lead", "apart", "still"]] * 2


def test_ranks_that_cannot_come_to_one_standstill_are_named_with_their_nodes():
    nodes = [Played(apart=True, stuck=True), Played(apart=True)]
    done = Over({"a": nodes[0], "b": nodes[1]}, 0.3, 5.0).checkpoint(
        CheckpointRequest(target="train", cut=CUT, timeout=5.0)
    )
    assert told(done) == ("taken_back", "cut_failed", 4)
    assert done.error
    assert "process 70 of node a waits in reduce on stream 0x10" in done.error.message
    assert "process 70 of node b is in its own code" in done.error.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WrongVersion("another"), "wrong_version"),
        (DeadlinePassed("late"), "node_unreachable"),
        (PeerGone("gone"), "node_unreachable"),
    ],
)
def test_a_node_that_cannot_be_greeted_has_nothing_begun_anywhere(error: GcrError, code: str):
    nodes = [Played(), Played(greeting=error)]
    with pytest.raises(GcrError, match="node 1") as caught:
        cut_of(*nodes)
    assert (caught.value.code, caught.value.exit) == (code, 3)
    assert [node.said for node in nodes] == [["closed"]] * 2


@pytest.mark.parametrize(
    ("passed", "error", "result"),
    [
        (0, NoRoom("full", missing=7), ("refused", "no_room", 3)),
        (0, DriverError("broken"), ("taken_back", "cut_failed", 4)),
        (1, NoRoom("full", missing=7), ("taken_back", "cut_failed", 4)),
        (2, DriverError("broken"), ("taken_back", "cut_failed", 4)),
        (2, PeerGone("its daemon died"), ("taken_back", "cut_failed", 4)),
        (2, Lost("gone for good"), ("taken_back", "lost", 5)),
    ],
)
def test_an_error_of_one_node_is_the_error_of_all(passed: int, error: GcrError, result: tuple[str, str, int]):
    nodes = [Played(), Played(fails={passed: error}), Played()]
    done = cut_of(*nodes)
    assert told(done) == result
    assert done.error
    assert done.error.message.startswith("node 1: ")
    assert {node.state for node in nodes} == {"running"}


def test_a_node_that_cannot_restore_its_part_is_told_of():
    stuck, other = Played(), Played()
    other.restore = lambda *_: (_ for _ in ()).throw(NoRoom("full", missing=7))  # type: ignore[method-assign]
    passes = stuck.checkpoint

    def fails_late(request: CheckpointRequest, told: Told, limit: float) -> CheckpointReport:
        passes(request, told, limit)
        until(lambda: other.state == "suspended", 10, "the other node has decided")
        stuck.state, stuck.cut = "running", None
        raise DriverError("broken")

    stuck.checkpoint = fails_late  # type: ignore[method-assign]
    done = cut_of(stuck, other)
    assert told(done) == ("unsettled", "cut_unsettled", 4)
    assert done.error
    assert "running on 1 and suspended on 1 of 2 nodes" in done.error.message
    assert done.error.hint == "gcr cluster recover train, with all its nodes"


def test_a_restore_says_of_which_cut_the_job_comes_back():
    nodes = [Played("suspended", "x"), Played("suspended", "x")]
    done = back_of(*nodes)
    assert (told(done), done.report.cut) == (("done", None, 0), "x")
    assert [node.said for node in nodes] == [[f"restore {CUT}", "ready", "closed"]] * 2


def test_a_mix_is_refused_and_recovered():
    nodes = [Played("suspended", "x"), Played()]
    refused = back_of(*nodes)
    assert told(refused) == ("refused", "not_one_cut", 3)
    assert [each.place for each in refused.report.nodes] == ["suspended", "running"]
    done = over(*nodes).recover(RestoreRequest(target="train"))
    assert told(done) == ("done", None, 0)
    assert nodes[0].said == ["closed", "restore None", "closed"]


def test_other_errors_of_a_node_are_bugs_that_are_told_as_such():
    node = Played()
    node.checkpoint = lambda *_: {}["nothing"]  # type: ignore[method-assign]
    done = cut_of(node, Played())
    assert (done.report.outcome, done.report.nodes[0].error and done.report.nodes[0].error["code"]) == (
        "taken_back",
        "internal",
    )


def test_what_a_node_says_in_its_end_changes_nothing():
    node = Played()
    leave: Callable[[], Any] = node.close

    def close() -> None:
        leave()
        raise NodeUnreachable("it is gone")

    node.close = close  # type: ignore[method-assign]
    assert told(cut_of(node)) == ("done", None, 0)
