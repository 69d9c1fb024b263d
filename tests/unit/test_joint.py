"""The owner of all memory that processes of a job share, or a refusal that names both processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gcr.engine.joint import Borrowed, Joint, Located, Party, join, owners
from gcr.errors import OwnerEnded, Refused, UnsupportedState
from gcr.peers.shares import NOTHING, Foreign, Lent, Shares

MiB = 1 << 20


def nobody(_name, _pid):
    return None


def unasked(_name, _pid):
    raise AssertionError("agents are asked for a refusal alone")


def name_of(pid: int) -> int:
    return pid << 40 | 5


@st.composite
def jobs(draw) -> list[Party]:
    """Draws a job whose processes own memory, and hold some of each other's."""
    pids = draw(st.lists(st.integers(2, 1 << 22), min_size=1, max_size=6, unique=True))
    own = {pid: draw(st.dictionaries(st.integers(1, 9), st.integers(1, 4 * MiB), max_size=4)) for pid in pids}
    everything = [(pid, id) for pid in pids for id in own[pid]]
    held: dict[int, list[Foreign]] = {pid: [] for pid in pids}
    lent: dict[int, list[Lent]] = {pid: [] for pid in pids}
    for pid in pids:
        others = [each for each in everything if each[0] != pid]
        chosen = draw(st.lists(st.sampled_from(others), unique=True, max_size=5)) if others else []
        for number, (owner, id) in enumerate(chosen):
            held[pid].append(Foreign(100 + number, own[owner][id], name_of(owner), id))
            lent[owner].append(Lent(id, name_of(pid), draw(st.sampled_from([pid, 0]))))
    return [Party(pid, Shares(name_of(pid), tuple(held[pid]), tuple(lent[pid])), own[pid]) for pid in pids]


@given(jobs())
def test_each_foreign_handle_has_the_owner_that_it_names(job):
    joint = join(job, unasked)
    for party in job:
        found = [(each.id, name_of(each.owner), each.there) for each in joint.of(party.pid)]
        assert found == [(each.id, each.owner, each.there) for each in party.shares.foreign]
        assert joint.lent.get(party.pid, []) == sorted({each.id for each in party.shares.lent})
        assert joint.shares(party.pid) == party.shares.any
    assert joint == owners(job)


@given(jobs())
def test_a_process_alone_in_its_group_shares_nothing_and_no_group_shares_with_another(job):
    joint = join(job, unasked)
    groups = joint.groups([party.pid for party in job])
    assert sorted(pid for group in groups for pid in group) == sorted(party.pid for party in job)
    home = {pid: number for number, group in enumerate(groups) for pid in group}
    for pid, held in joint.borrowed.items():
        assert {home[each.owner] for each in held} == {home[pid]}
    for group in groups:
        reached = {group[0]}
        for _ in group:
            reached |= {pid for pid in group if reached & {each.owner for each in joint.of(pid)}}
            reached |= {each.owner for pid in reached for each in joint.of(pid)}
        assert reached == {*group}
        assert len(group) == 1 or all(joint.shares(pid) for pid in group)


@given(jobs(), st.data())
def test_a_process_that_is_left_out_is_refused_exactly_if_it_shares(job, data):
    left_out = data.draw(st.sampled_from(job))
    rest = [party for party in job if party is not left_out]
    if not left_out.shares.any:
        assert join(rest, unasked) == owners(job)
        return
    with pytest.raises(UnsupportedState) as caught:
        join(rest, lambda name, pid: Located("other", left_out.pid) if name == name_of(left_out.pid) else None)
    assert f"process {left_out.pid} of job other" in caught.value.message
    assert any(f"process {party.pid} " in caught.value.message for party in rest if party.shares.any)


@given(jobs(), st.data(), st.booleans())
def test_memory_that_its_owner_does_not_have_like_that_is_refused(job, data, freed):
    lenders = [party for party in job if party.shares.lent]
    if not lenders:
        return
    owner = data.draw(st.sampled_from(lenders))
    id = data.draw(st.sampled_from([each.id for each in owner.shares.lent]))
    sizes = {other: size for other, size in owner.sizes.items() if other != id}
    changed = replace(owner, sizes=sizes if freed else {**sizes, id: 8 * MiB})
    with pytest.raises(UnsupportedState, match=f"process {owner.pid}, which {'has freed it' if freed else 'reports'}"):
        join([changed if party is owner else party for party in job], unasked)
    unknown = replace(owner, sizes=None)
    assert join([unknown if party is owner else party for party in job], unasked) == owners(job)


GONE = "which has ended while the job was suspended, and no process keeps its bytes"


@given(jobs())
def test_the_holders_of_a_process_are_those_that_hold_memory_of_it(job):
    joint = owners(job)
    for party in job:
        holders = {each.pid for each in job if name_of(party.pid) in {held.owner for held in each.shares.foreign}}
        assert joint.holders(party.pid) == tuple(sorted(holders))


def holder(owner: int, pid: int = 11) -> Party:
    return Party(pid, Shares(1, (Foreign(3, 2 * MiB, owner, 4),)), {})


@pytest.mark.parametrize(
    ("locate", "ended", "kind", "text"),
    [
        (lambda *_: Located("other", 12), (), UnsupportedState, "process 12 of job other, which takes no part"),
        (nobody, (), UnsupportedState, "a process that has ended, or is outside of gcr"),
        (lambda *_: Located("llm", 12, ended=True), (), UnsupportedState, "process 12, which has ended"),
        (lambda *_: Located("llm", 12, ended=True), (12,), OwnerEnded, f"process 12, {GONE}"),
        (nobody, (12,), OwnerEnded, f"process 12, {GONE}"),
        (nobody, (12, 13), OwnerEnded, f"process 12 or 13, {GONE}"),
    ],
)
def test_memory_without_an_owner_is_refused(locate, ended, kind, text):
    with pytest.raises(kind) as caught:
        join([holder(2)], locate, ended)
    assert caught.value.message == f"process 11 holds 2 MiB of device memory of {text}"
    assert isinstance(caught.value, Refused)
    assert caught.value.exit == UnsupportedState.exit


@pytest.mark.parametrize(
    ("locate", "pid", "text"),
    [
        (lambda *_: Located("other", 12), 12, "process 12 of job other, which takes no part"),
        (nobody, 12, "process 12, outside of gcr"),
        (nobody, 0, "a process outside of gcr that it does not see"),
    ],
)
def test_memory_lent_to_a_process_that_takes_no_part_is_refused(locate, pid, text):
    lender = Party(11, Shares(1, (), (Lent(4, 2, pid),)), {4: 2 * MiB})
    with pytest.raises(UnsupportedState) as caught:
        join([lender], locate)
    assert caught.value.message == f"process 11 lends device memory to {text}"


def test_agents_without_a_name_own_nothing():
    """They are of an earlier gcr, and each says 0."""
    silent = [Party(12, NOTHING, {4: 2 * MiB}), Party(13, NOTHING, {4: 2 * MiB})]
    with pytest.raises(UnsupportedState):
        join([holder(0), *silent], nobody)
    assert owners([holder(0), *silent]) == Joint()


def test_a_process_may_let_go_between_two_questions():
    """Its owner still lists it, and it does not list the memory any more."""
    assert join([Party(11, Shares(1, (), (Lent(4, 2, 12),)), {4: 1}), Party(12, Shares(2), {})], unasked) == Joint()


def test_groups_keep_the_order_of_their_processes():
    joint = Joint({3: (Borrowed(1, 1, 1),), 5: (Borrowed(1, 3, 1), Borrowed(2, 4, 1))})
    assert joint.groups([5, 4, 3, 2, 1]) == [[5, 4, 3, 1], [2]]
