"""Devices that others took the place of: what the daemon tells an agent of them, and from when on it says so itself."""

import pytest
from packets import WRONG_PHASE, Refused

OTHER = bytes(range(16))
MiB = 1 << 20


@pytest.fixture
def uuids(target):
    _, agent = target
    return [uuid for uuid, *_ in agent.status().devices]


def named(agent):
    return [uuid for uuid, *_ in agent.status().devices]


def test_they_are_named_so_once_the_transaction_is_over(target, uuids):
    puppet, agent = target
    first, second = uuids
    puppet.must("alloc a 0x300000", "fill a 1", "sync")
    agent.take()
    agent.moved((first, second), (second, first))
    assert named(agent) == [first, second]
    agent.bring_back()
    assert named(agent) == [second, first]
    assert agent.status().devices[0][2:] == (1, 4 * MiB)
    puppet.must("check a 1")
    agent.cycle()
    assert named(agent) == [second, first]


def test_what_is_told_last_counts(target, uuids):
    _, agent = target
    first, second = uuids
    agent.take()
    agent.moved((first, second), (second, first))
    agent.moved((second, OTHER))
    agent.bring_back()
    assert named(agent) == [first, OTHER]


@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_discarded_did_not_move(target, uuids, mapped):
    puppet, agent = target
    puppet.must("alloc a 0x300000", "fill a 1", "sync")
    agent.take()
    agent.moved((uuids[0], OTHER))
    if mapped:
        agent.give_back(sorted(agent.custody.held))
        agent.count("map")
    agent.count("discard")
    agent.bring_back()
    assert named(agent) == uuids
    puppet.must("check a 1")


def test_only_what_is_handed_over_can_move(target, uuids):
    _, agent = target
    steps = [lambda: None, agent.export, agent.quiesce]
    for step in steps:
        step()
        with pytest.raises(Refused) as refused:
            agent.moved((uuids[0], OTHER))
        assert refused.value.code == WRONG_PHASE
    agent.count("hand_over")
    agent.ask("freeze")
    with pytest.raises(Refused) as refused:
        agent.moved((uuids[0], OTHER))
    assert refused.value.code == WRONG_PHASE
    agent.ask("thaw")
    agent.bring_back()
    assert named(agent) == uuids
