"""An agent that always has more to come is heard for so many rounds, and for so long."""

import math
import os
from collections.abc import Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest
from channels import open_descriptors

from gcr.engine.exports import Exports
from gcr.engine.target import Target
from gcr.errors import DeadlinePassed, RolledBack, StagedGone
from gcr.memory.escrow import MOST_STAGED
from gcr.peers import agent as agents
from gcr.peers.agent import AgentPeer
from gcr.peers.image import ImagePeer
from gcr.peers.paging import IDLE_ROUNDS, Paging
from gcr.protocol.agentwire import ExportBatch, MappingBatch, StageRequest
from gcr.protocol.seqpacket import close_all

ROUNDS = 1000


class Endless:
    """Answers every request alike; more than ROUNDS times is for ever."""

    def __init__(self, payload: bytes) -> None:
        self.payload, self.asked = payload, 0

    def call(self, *_request: object, **_how: object) -> Any:
        self.asked += 1
        assert self.asked < ROUNDS, "asked for ever"
        return SimpleNamespace(payload=self.payload, take_fds=list)


def peer(payload: bytes) -> AgentPeer:
    return AgentPeer(cast("Any", Endless(payload)), cast("Any", SimpleNamespace(pid=7)), cast("Any", None), 60.0)


def target(agent: AgentPeer, prepare_s: float = 60.0) -> Target:
    process = SimpleNamespace(agent=agent, identity=SimpleNamespace(pid=7))
    node = SimpleNamespace(config=SimpleNamespace(batch=64, prepare_s=prepare_s))
    return Target(cast("Any", process), 1, cast("Any", node), cast("Any", None), cast("Any", None))


def test_exports_that_lead_nowhere_end() -> None:
    with pytest.raises(RolledBack, match="gives nothing"):
        target(peer(ExportBatch.of(1, [], more=True).pack())).exports.export_new()


def test_exports_end_with_the_time_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = peer(b"")
    pages = iter(range(1, ROUNDS))
    reply = lambda: SimpleNamespace(reply=SimpleNamespace(more=1, last_id=next(pages)), handles=(), handed=())  # noqa: E731
    monkeypatch.setattr(AgentPeer, "export", lambda *_: (reply(), []))
    monkeypatch.setattr(Exports, "_pass_on", lambda *_: None)
    with pytest.raises(DeadlinePassed, match="exports took longer"):
        target(agent, prepare_s=0.0).exports.export_new()


def test_mappings_that_lead_nowhere_end() -> None:
    with pytest.raises(RolledBack, match="gives nothing"):
        list(peer(MappingBatch.of(1, 0, [], more=True).pack()).mappings(1))


def test_no_process_holds_more_segments_than_there_can_be() -> None:
    agent = peer(StageRequest(transaction=1, offset=0, total=MOST_STAGED + 1).pack())
    with pytest.raises(RolledBack, match=f"holds {MOST_STAGED + 1} segments"):
        agent.unstage(1)


class Staging:
    """An agent that gives its staged descriptors in pages of these sizes, and says that it has `total`."""

    def __init__(self, total: int, sizes: Iterator[int]) -> None:
        self.total, self.sizes, self.asked = total, sizes, cast("list[int]", [])

    def call(self, _kind: object, payload: bytes, *_fds: object, **_how: object) -> Any:
        self.asked.append(StageRequest.unpack(payload).offset)
        assert len(self.asked) < ROUNDS, "asked for ever"
        answer = StageRequest(transaction=1, offset=0, total=self.total).pack()
        return SimpleNamespace(payload=answer, take_fds=lambda: [os.dup(0) for _ in range(next(self.sizes, 0))])

    def unstage(self) -> list[int]:
        return AgentPeer(cast("Any", self), cast("Any", SimpleNamespace(pid=7)), cast("Any", None), 60.0).unstage(1)


@pytest.mark.parametrize(("total", "sizes", "asked"), [(0, [0], [0]), (3, [3], [0]), (7, [3, 1, 3], [0, 3, 4])])
def test_staged_descriptors_are_asked_for_until_all_have_come(total: int, sizes: list[int], asked: list[int]) -> None:
    agent = Staging(total, iter(sizes))
    found = agent.unstage()
    assert (len(found), agent.asked) == (total, asked)
    close_all(found)


def test_staged_descriptors_that_the_program_closed_are_not_asked_for_again() -> None:
    agent, before = Staging(5, iter([2, 2])), open_descriptors()
    with pytest.raises(StagedGone, match="process 7 closed"):
        agent.unstage()
    assert (agent.asked, open_descriptors()) == ([0, 2, 4], before)


def test_staged_descriptors_end_with_the_time_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "PAGES_S", 0.0)
    before = open_descriptors()
    with pytest.raises(DeadlinePassed, match="staged descriptors took longer"):
        Staging(MOST_STAGED, repeat(1)).unstage()
    assert open_descriptors() == before


def test_an_image_helper_that_gives_nothing_is_not_asked_for_ever() -> None:
    answers = iter([({"descriptors": 3}, []), *([({}, [])] * ROUNDS)])
    channel = SimpleNamespace(call_json=lambda *_, **__: next(answers))
    patience = SimpleNamespace(heard=None, heard_nothing=None)
    with pytest.raises(RolledBack, match="gave 0 descriptors, and said that it has 3"):
        ImagePeer(cast("Any", channel), os.getpid()).load(7, 1.0, cast("Any", patience))


def test_pages_that_lead_on_are_asked_for() -> None:
    pages = Paging("exports", math.inf)
    for last in range(1, ROUNDS):
        for _ in range(IDLE_ROUNDS):
            pages.turn(last)
    assert pages.cursor == ROUNDS - 1
