"""An agent that always has more to come is heard for so many rounds, and for so long."""

import math
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.engine.exports import Exports
from gcr.engine.target import Target
from gcr.errors import DeadlinePassed, RolledBack
from gcr.memory.escrow import MOST_STAGED
from gcr.peers.agent import AgentPeer
from gcr.peers.image import ImagePeer
from gcr.peers.paging import IDLE_ROUNDS, Paging
from gcr.protocol.agentwire import ExportBatch, MappingBatch, StageRequest

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
    return AgentPeer(cast("Any", Endless(payload)), cast("Any", SimpleNamespace(pid=7)), cast("Any", None))


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


def test_an_image_helper_that_gives_nothing_is_not_asked_for_ever() -> None:
    answers = iter([({"descriptors": 3}, []), *([({}, [])] * ROUNDS)])
    channel = SimpleNamespace(call_json=lambda *_, **__: next(answers))
    patience = SimpleNamespace(heard=None, heard_nothing=None)
    with pytest.raises(RolledBack, match="fewer descriptors"):
        ImagePeer(cast("Any", channel), os.getpid()).load(7, 1.0, cast("Any", patience))


def test_pages_that_lead_on_are_asked_for() -> None:
    pages = Paging("exports", math.inf)
    for last in range(1, ROUNDS):
        for _ in range(IDLE_ROUNDS):
            pages.turn(last)
    assert pages.cursor == ROUNDS - 1
