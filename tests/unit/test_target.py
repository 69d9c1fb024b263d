"""A process inside a transaction, with an agent that says what the test wants."""

from functools import partial
from itertools import permutations

import pytest
from msgspec.structs import replace
from targets import DEVICE, Agent, MiB, Node, kept, place, target_of

from gcr.engine import count
from gcr.engine.aside import export_more, runs_on
from gcr.engine.count import DRIVERS_GROWTH, counted, counted_and_left, refuse_a_part
from gcr.engine.node import Course
from gcr.engine.progress import Meter
from gcr.engine.steps.books import CloseBooks
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.quiesce import CATCHING_UP, Quiesce
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Options, Work
from gcr.errors import PeerGone
from gcr.job.process import Process
from gcr.job.states import State, Strategy, Way
from gcr.job.tracking import Contradiction
from gcr.processes import ProcessIdentity
from gcr.protocol.agentwire import HandleRecord
from gcr.protocol.operations.worker import Moved
from gcr.protocol.wire import HandleFlag


def work_of(target: Target) -> Work:
    return Work.of("llm", [target], Node, Course("checkpoint", 7, 60), Options())


def handed_over(target: Target) -> None:
    """The steps of a checkpoint."""
    for state in (State.PREPARED, State.QUIESCED):
        target.process.move(state)
    work = work_of(target)
    with Transaction("llm") as undo:
        for step in (CloseBooks(work, Meter(work.course, "draining", {})), HandOver(work)):
            step.do(undo)
        undo.commit()


def test_an_ended_process_is_gone_whatever_was_under_way():
    process = Process("llm", ProcessIdentity(4711, 1), State.EXITED)
    for step in (partial(process.move, State.PREPARED), partial(process.advance, "drain")):
        with pytest.raises(PeerGone, match="process 4711 has ended"):
            step()
    process.take_back("hand_over")
    process.settle(State.RUNNING)
    assert (process.state, process.end()) == (State.EXITED, State.EXITED)


@pytest.mark.parametrize("steps", [*permutations(("freeze", "drain"))])
@pytest.mark.parametrize("undos", [*permutations(("freeze", "drain"))])
def test_freeze_and_drain_are_taken_and_taken_back_in_any_order(steps, undos):
    process = Process("llm", ProcessIdentity(4711, 1), State.HANDED_OVER)
    for step in steps:
        process.advance(step)
    assert process.state == State.FROZEN_DRAINED
    for step in undos:
        process.take_back(step)
        process.take_back(step)
    assert process.state == State.HANDED_OVER


def test_a_process_tells_how_its_data_leaves():
    process = Process("llm", ProcessIdentity(4711, 1))
    assert process.strategy == Strategy.HANDOFF
    process.copied_out = True
    assert process.strategy == Strategy.COPYOUT
    process.way = Way.DRIVER
    assert process.strategy == Strategy.DRIVER


def test_the_books_are_what_the_process_reported():
    agent = Agent([kept(1), kept(2), kept(3)], [place(1), place(2), place(3)])
    target = target_of(agent)
    target.look()
    target.exports.export_new()
    assert target.bytes_by_device == {DEVICE: 6 * MiB}
    handed_over(target)
    assert (list(target.books.table.allocations), agent.handed_over) == ([1, 2, 3], [7])
    assert target.books.table.mappings() == [place(1), place(2), place(3)]


def test_a_save_reads_anew_where_memory_is_mapped_and_exports_what_is_new():
    """The exports stand from the last save; the program has mapped its memory elsewhere meanwhile, and made more."""
    agent = Agent([kept(1), kept(2)], [place(1), place(2)])
    target, undo = target_of(agent), Transaction("llm")
    target.look()
    export_more(target, undo)
    undo.commit()
    runs_on(target)
    assert target.process.state == State.RUNNING
    moved = replace(place(1), address=9 << 30)
    agent.handles.append(kept(3))
    agent.places = [moved, place(3)]
    export_more(target, undo)
    assert list(target.books.table.allocations) == [1, 2, 3]
    assert target.books.table.mappings() == [moved, place(3)]
    assert target.process.state == State.PREPARED


@pytest.mark.parametrize("wrong", [place(3), place(1, 4 * MiB)], ids=["of no handle", "beyond its handle"])
def test_a_mapping_that_does_not_fit_stops_it_before_anything_is_released(wrong):
    agent = Agent([kept(1), kept(2)], [place(2), wrong])
    target = target_of(agent)
    with pytest.raises(Contradiction):
        handed_over(target)
    assert agent.handed_over == []
    assert target.process.state == State.QUIESCED


def test_a_handle_that_became_another_one_stops_it():
    agent = Agent([kept(1)], [place(1)])
    target = target_of(agent)
    target.exports.export_new()
    agent.handles = [HandleRecord(1, 4 * MiB, flags=HandleFlag.KEPT)]
    target.exports._after = 0
    with pytest.raises(Contradiction, match="another one"):
        target.exports.export_new()


def test_a_freed_handle_is_out_of_the_books_and_must_not_come_back(monkeypatch):
    agent = Agent([kept(1), kept(2)], [place(2)])
    target = target_of(agent)
    target.exports.export_new()
    monkeypatch.setattr("gcr.engine.exports.forget_freed", lambda *_: None)
    target.exports.released([1])
    assert target.bytes_by_device == {DEVICE: 2 * MiB}
    with pytest.raises(PeerGone, match="handed over 2 handles of 1"):
        handed_over(target)
    target.exports._after = 0
    with pytest.raises(Contradiction, match="released and is back"):
        target.exports.export_new()


@pytest.mark.parametrize("freed", [[2], [1, 2, 3], [1, 5]], ids=repr)
def test_a_free_whose_message_is_on_its_way_stops_no_checkpoint(monkeypatch, freed):
    """The program's frees no longer wait for the daemon's answer. A live handle without a mapping stays."""
    agent = Agent([kept(id) for id in range(1, 6)], [place(1), place(2), place(3), place(5)])
    target, told = target_of(agent), []
    target.look()
    target.exports.export_new()
    agent.handles = [handle for handle in agent.handles if handle.id not in freed]
    agent.places = [each for each in agent.places if each.id not in freed]
    target.exports.unkept[freed[0]] = 2 * MiB
    monkeypatch.setattr("gcr.engine.exports.forget_freed", lambda _process, ids, *_: told.extend(ids))
    handed_over(target)
    assert (told, target.exports.unkept) == (freed, {})
    assert list(target.books.table.allocations) == [id for id in range(1, 6) if id not in freed]
    target.exports.released(freed)  # the message


class Busy(Agent):
    """A program that makes handles while others are exported: `more` of them each time all were asked for."""

    more: list[int]

    def export(self, transaction, after, limit):
        found = super().export(transaction, after, limit)
        if not found[0].reply.more and self.more:
            first = len(self.handles) + 1
            self.handles += map(kept, range(first, first + self.more.pop(0)))
        return found


@pytest.mark.parametrize(
    ("more", "left"),
    [([9, 5, 3, 2], 0), ([9, 2, 9], 9), ([0, 9], 9), ([9] * 20, 9)],
    ids=["fewer each time", "few once", "none once", "as many each time"],
)
def test_what_a_program_makes_while_it_is_caught_up_with_is_caught_up_with(more, left):
    """Exports until the program makes no more handles than go at once, or it is of no use."""
    agent = Busy([kept(1)], [])
    agent.more = more
    target, reserved = target_of(agent), []
    target.worker(DEVICE).known = [*range(1, 1000)]
    target.look()
    target.exports.export_new()
    target.worker(DEVICE).reserve = lambda _hold, _owner, nbytes: reserved.append(nbytes)
    Quiesce(work_of(target)).catch_up()
    assert len(agent.handles) - target.exports._after == left
    assert reserved[-1] == target.bytes_by_device[DEVICE] == 2 * MiB * target.exports._after
    assert len(reserved) <= CATCHING_UP


def test_what_others_just_made_is_waited_for_and_never_taken_for_its_own():
    """Room for the driver is computed from the process's own memory, independent of the moment of others."""
    target = target_of(Agent([kept(1)], [place(1)]))
    target.look()
    target.exports.export_new()
    target.worker(DEVICE).unexplained = 1 << 40
    assert counted(target, DEVICE) == 2 * MiB
    assert counted_and_left(target, DEVICE) == (1 << 40) + 2 * MiB
    target.worker(DEVICE).unexplained = DRIVERS_GROWTH
    assert counted_and_left(target, DEVICE) == 2 * MiB


def test_memory_that_stays_is_waited_for_and_told_of(monkeypatch, caplog):
    monkeypatch.setattr(count, "GONE_WITHIN", 0.05)
    monkeypatch.setattr(Target, "keeps_context", False)
    target = target_of(Agent([kept(1)], [place(1)]))
    target.look()
    target.exports.export_new()
    holder = target.worker(DEVICE)
    holder.known, holder.unexplained = [], 1 << 40
    waited = work_of(target).count
    waited.wait()
    assert waited.after == {(4711, DEVICE): 1 << 40}
    assert f"process 4711, {DEVICE}: {1 << 40} bytes" in caplog.text
    caplog.clear()
    holder.unexplained = 65 * MiB  # the growth of the worker's own context: it stays
    monkeypatch.setattr(count, "GONE_WITHIN", 60.0)
    waited.wait()
    assert not caplog.text


def test_a_device_that_was_not_copied_is_noticed():
    whole = {(1, "one"): Moved(5, 1.0), (1, "other"): Moved(7, 1.0), (2, "one"): Moved(3, 1.0)}
    refuse_a_part({1: 12, 2: 3, 3: 0}, whole)
    part = {copy: done for copy, done in whole.items() if copy != (1, "other")}
    with pytest.raises(PeerGone, match=r"^5 bytes of process 1 were copied, and it holds 12$"):
        refuse_a_part({1: 12, 2: 3}, part)
