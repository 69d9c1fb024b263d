"""Shared memory as agents list it: in pages, and not at all where they are of an earlier gcr."""

from types import SimpleNamespace

import pytest

from gcr.errors import PeerGone, RolledBack, WrongState
from gcr.peers.agent import AgentPeer
from gcr.peers.shares import NOTHING, Foreign, Lent, shares_of
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import ExportRequest, SharedBatch, SharedRecord
from gcr.protocol.channel import AgentError
from gcr.protocol.wire import ErrorCode, FrameType, SharedFlag

NAME = (1 << 64) - 3
RECORDS = [
    SharedRecord(1, 10, 7, 5, device=1, devices=3, flags=SharedFlag.FOREIGN),
    SharedRecord(2, 20, 8, pid=12),
    SharedRecord(2, 20, 9),
    SharedRecord(3, 30, 7, 6, flags=SharedFlag.FOREIGN),
]


class Channel:
    """The agent's side: two records a page, by a cursor that is no id; `answers` instead of a page, where given."""

    def __init__(self, records, answers=()):
        self.records, self.answers, self.asked = records, list(answers), []

    def call(self, kind, payload, _fds, timeout):
        assert kind == FrameType.SHARED
        request = ExportRequest.unpack(payload)
        self.asked.append((request.transaction, request.after_id))
        if self.answers and (answer := self.answers.pop(0)):
            raise answer
        page = self.records[request.after_id : request.after_id + 2]
        cursor = request.after_id + len(page)
        batch = SharedBatch.of(request.transaction, NAME, cursor, page, more=cursor < len(self.records))
        return SimpleNamespace(payload=batch.pack())


def shares(channel):
    return shares_of(AgentPeer(channel, ProcessIdentity(4711, 1), None, 60.0), 7)


def refusal(code):
    return AgentError("no such request in this version", agent_code=code)


def test_all_pages_are_read():
    channel = Channel(RECORDS)
    found = shares(channel)
    assert found.process == NAME
    assert found.foreign == (Foreign(1, 10, 7, 5, device=1, devices=3), Foreign(3, 30, 7, 6))
    assert found.lent == (Lent(2, 8, 12), Lent(2, 9, 0))
    assert channel.asked == [(7, 0), (7, 2)]
    assert found.any
    assert found.borrowed.lent == ()
    assert found.borrowed.foreign == found.foreign


def test_a_process_that_shares_nothing_has_a_name():
    assert (shares(Channel([])).process, shares(Channel([])).any) == (NAME, False)


def test_an_agent_of_an_earlier_gcr_shares_nothing():
    assert shares(Channel(RECORDS, [refusal(ErrorCode.BAD_FRAME)])) == NOTHING


@pytest.mark.parametrize(
    "answers",
    [[refusal(ErrorCode.WRONG_TRANSACTION)], [None, refusal(ErrorCode.BAD_FRAME)], [PeerGone("it has ended")]],
    ids=["another refusal", "in the middle", "gone"],
)
def test_any_other_failure_is_an_error(answers):
    with pytest.raises((RolledBack, WrongState)):
        shares(Channel(RECORDS, answers))
