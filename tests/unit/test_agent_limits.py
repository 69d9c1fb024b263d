"""How long the daemon waits for an agent that moves its process's memory."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.peers.agent import WAY_BACK_S, AgentPeer
from gcr.protocol.agentwire import CountRecord
from gcr.protocol.wire import FrameType


class Listening:
    """Notes how long each request may take."""

    def __init__(self) -> None:
        self.limits: dict[FrameType, float] = {}

    def call(self, kind: FrameType, _payload: bytes, _fds: object, timeout: float) -> Any:
        self.limits[kind] = timeout
        return SimpleNamespace(payload=CountRecord(transaction=1, count=0, bytes=0).pack())


@pytest.mark.parametrize("limit", [5.0, 300.0])
def test_a_hand_over_has_its_setting_and_the_way_back_a_minute_at_least(limit: float) -> None:
    channel = Listening()
    agent = AgentPeer(cast("Any", channel), cast("Any", None), cast("Any", None), limit)
    agent.hand_over(1)
    assert channel.limits.pop(FrameType.HAND_OVER) == limit
    agent.give(1, [], [])
    agent.rehome(1, [])
    agent.create(1, [])
    agent.map(1)
    agent.discard(1)
    back = (FrameType.IMPORT, FrameType.REHOME, FrameType.CREATE, FrameType.MAP, FrameType.DISCARD)
    assert channel.limits == dict.fromkeys(back, max(limit, WAY_BACK_S))
