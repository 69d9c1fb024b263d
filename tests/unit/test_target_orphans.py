"""Memory of a process that no keeper has: it is made anew, behind the gate, where there is room."""

import os

import pytest
from msgspec.structs import replace
from targets import DEVICE, Agent, Holder, MiB, Node, kept, place, target_of

from gcr.engine.rehome import close_books
from gcr.engine.target import Target
from gcr.errors import NoRoom, RolledBack


class Orphaned(Agent):
    """No keeper has its memory. It makes memory anew while there is room, and can export it then."""

    def __init__(self, handles, room=True):
        super().__init__(handles, [place(h.id) for h in handles])
        self.room, self.asked = room, []

    def rehome(self, _transaction, ids):
        self.asked.append(list(ids))
        if not self.room:
            raise NoRoom("full", missing=None)
        self.handles = [replace(h, flags=0) if h.id in ids else h for h in self.handles]

    def export(self, transaction, after, limit):
        batch, _ = super().export(transaction, after, limit)
        return batch, [os.open(os.devnull, os.O_RDONLY) for _ in batch.handed]


class Taking(Holder):
    """Worker and keeper that take what they are given."""

    def adopt(self, _hold, specs, _fds, _lent=False):
        self.known = sorted({*self.known, *(spec.id for spec in specs)})

    def put(self, _pid, ids, _fds):
        self.known = sorted({*self.known, *ids})


def orphaned(agent: Orphaned, known: list[int]) -> tuple[Target, Taking]:
    target, holder = target_of(agent), Taking(known)
    target.keeper = lambda: holder
    target._workers[DEVICE] = holder
    target.look()
    target.exports.export_new()
    return target, holder


def test_what_no_keeper_has_is_made_anew_behind_the_gate_and_only_that():
    agent = Orphaned([kept(1), kept(2), kept(5)])
    target, holder = orphaned(agent, [2])
    assert (target.exports.unkept, agent.asked) == ({1: 2 * MiB, 5: 2 * MiB}, [])
    close_books(target)
    assert (agent.asked, holder.known, target.exports.unkept) == ([[1, 5]], [1, 2, 5], {})
    assert target.exports.fresh == {1, 5}
    assert set(target.exports.imported) == {2}  # what was made anew counts for the process
    target.spare.close()


class Withholding(Orphaned):
    """Says that memory was made anew, and lists it without a descriptor, or gets nowhere with its pages."""

    def __init__(self, handles, stands):
        super().__init__(handles)
        self.stands = stands

    def rehome(self, _transaction, ids):
        self.asked.append(list(ids))

    def export(self, transaction, after, limit):
        batch, fds = super().export(transaction, after, limit)
        if self.asked and self.stands:
            batch = replace(batch, reply=replace(batch.reply, last_id=0))
        return batch, fds


@pytest.mark.parametrize("stands", [False, True])
def test_memory_that_was_made_anew_and_is_in_no_other_hands_does_not_leave(stands):
    """Its process would release the only memory with these bytes."""
    target, _ = orphaned(Withholding([kept(1), kept(2)], stands), [])
    with pytest.raises(RolledBack):
        close_books(target)


def test_one_that_is_freed_meanwhile_is_not_made_anew(monkeypatch):
    monkeypatch.setattr("gcr.engine.exports.forget_freed", lambda *_: None)
    agent = Orphaned([kept(1), kept(2)])
    target, _ = orphaned(agent, [2])
    target.exports.released([1])
    agent.handles, agent.places = agent.handles[1:], agent.places[1:]
    close_books(target)
    assert agent.asked == []


def test_without_room_it_is_refused_and_says_how_much_one_piece_is(monkeypatch):
    """After what gcr itself has there was given back."""
    given_up = []
    monkeypatch.setattr(Node, "free_room", lambda devices: given_up.append([*devices]), raising=False)
    monkeypatch.setattr(Target, "free_bytes", lambda self, devices: dict.fromkeys(devices, MiB))
    agent = Orphaned([kept(1), kept(2)], room=False)
    target, _ = orphaned(agent, [])
    with pytest.raises(NoRoom, match="2 MiB at a time") as caught:
        close_books(target)
    assert (caught.value.missing, given_up, len(agent.asked)) == (MiB, [[DEVICE]], 2)
