"""Memory that processes share goes with its owner, and comes back to all that hold it."""

import gc
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from sharing_job import DEVICE, MiB, SharingJob

from gcr.engine import departed, standing
from gcr.engine.lending import found
from gcr.engine.node import Course
from gcr.engine.restore import Restore
from gcr.engine.steps.foreign import GiveForeign, Join
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.memory import MakeMemory
from gcr.errors import DriverError, DriverGone, OwnerEnded, PeerGone, UnsupportedState
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.peers.shares import Lent
from gcr.protocol.wire import AgentPhase

RING = {11: [(12, 1), (13, 2)], 12: [(13, 1)], 13: [(11, 3)]}
OWNS = {11: [1, 2, 3], 12: [1], 13: [1, 2]}


def descriptors() -> int:
    gc.collect()  # what an earlier test has left behind
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(standing, "POLL", 0.0)
    monkeypatch.setattr("gcr.job.process.alive", lambda _identity: True)
    before = descriptors()
    jobs = []

    def make(owns=OWNS, holds=RING, kept=()):
        jobs.append(SharingJob(owns, holds, kept))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
    assert descriptors() == before


def handed_over(job: SharingJob) -> None:
    job.close_books()
    HandOver(job.work).do(job.undo)
    assert all(agent.phase == AgentPhase.HANDED_OVER for agent in job.agents.values())
    job.said.clear()


def test_the_books_of_a_process_know_its_own_memory_alone_and_it_hands_over_all(made):
    job = made()
    handed_over(job)
    assert [sorted(target.books.table.allocations) for target in job.targets] == [[1, 2, 3], [1], [1, 2]]
    assert [target.bytes_by_device for target in job.targets] == [{DEVICE: 3 * MiB}, {DEVICE: MiB}, {DEVICE: 2 * MiB}]
    assert job.keeper.ids(11) == [1, 2, 3]
    job.undo.roll_back(None)


def test_one_that_releases_less_is_noticed(made):
    job = made()
    job.close_books()
    job.agents[11].foreign.pop()
    with pytest.raises(PeerGone, match="handed over 4 handles of 5"):
        HandOver(job.work).do(job.undo)


def test_each_takes_its_own_memory_back_before_any_takes_memory_of_another(made):
    job = made()
    handed_over(job)
    job.undo.roll_back(None)
    assert job.undo.failed == []
    first = next(n for n, each in enumerate(job.said) if each.endswith(" 100"))
    assert all("has 10" in each or "maps" in each for each in job.said[first:])
    assert [each for each in job.said[-3:] if "maps" not in each] == []
    assert all(agent.phase == AgentPhase.MAPPED for agent in job.agents.values())
    assert job.work.leftovers.out == set()


@pytest.mark.parametrize("pid", [11, 12, 13])
@pytest.mark.parametrize("kept", [(), [(owner, id) for owner, ids in OWNS.items() for id in ids]], ids=["new", "kept"])
def test_memory_of_a_process_that_dies_meanwhile_comes_back_to_those_that_hold_it(made, pid, kept):
    job = made(kept=kept)
    handed_over(job)
    job.die(pid)
    job.undo.roll_back(None)
    assert job.undo.failed == []
    assert all(agent.phase == AgentPhase.MAPPED for agent in job.agents.values() if agent.pid != pid)


def test_a_process_whose_driver_has_shut_down_departs_after_others_have_its_memory(made, monkeypatch):
    job, gone = made(), []
    handed_over(job)
    monkeypatch.setattr("gcr.engine.steps.hand_over.depart", lambda target: gone.append([target.pid, *job.said]))
    job.agents[12].fails = [("give", DriverGone("it ends"))]
    job.dead.add(12)  # it never has its own back
    job.undo.roll_back(None)
    assert job.undo.failed == []
    assert [each[0] for each in gone] == [12]
    assert "11 has 100" in gone[0]
    assert job.work.leftovers.out == set()
    departed.depart(job.target(12))


NOT_YET = DriverError("not yet")


@pytest.mark.parametrize(
    "fails",
    [
        [("give", NOT_YET)] * 3,
        [("map", NOT_YET)] * 3,
        [("give", None), ("give", NOT_YET)],
        [*[("give", None)] * 3, ("give", NOT_YET)],
    ],
    ids=["at once", "at last", "half way", "in the memory of others"],
)
def test_a_driver_that_refuses_for_a_while_is_asked_again_for_the_rest(made, fails):
    job = made()
    handed_over(job)
    for agent in job.agents.values():
        agent.fails = [*fails]
    job.undo.roll_back(None)
    assert job.undo.failed == []
    assert all(agent.phase == AgentPhase.MAPPED for agent in job.agents.values())


def test_one_that_does_not_take_its_memory_back_keeps_no_other_from_it(made):
    job = made()
    handed_over(job)
    job.agents[12].fails = [("map", DriverError("no")) for _ in range(9)]
    job.undo.roll_back(None)
    assert [str(error) for _, error in job.undo.failed] == ["no"]
    assert job.work.leftovers.out == {12}
    assert [job.agents[pid].phase for pid in (11, 13)] == [AgentPhase.MAPPED] * 2


def test_a_hand_over_that_failed_in_one_process_is_taken_back_in_all(made):
    job = made()
    job.close_books()
    job.agents[12].fails = [("hand_over", DriverError("no"))]
    with pytest.raises(DriverError):
        HandOver(job.work).do(job.undo)
    job.undo.roll_back(None)
    assert job.undo.failed == []
    assert job.agents[12].phase == AgentPhase.QUIESCED
    assert [job.agents[pid].phase for pid in (11, 13)] == [AgentPhase.MAPPED] * 2


def test_what_is_shared_with_an_outsider_is_refused_behind_the_gate_and_nothing_is_released(made):
    job = made()
    job.agents[77] = SimpleNamespace(pid=77, foreign=[SimpleNamespace(there=1, size=MiB, owner=12)])
    with pytest.raises(UnsupportedState, match="process 12 lends device memory to process 77, outside of gcr"):
        job.close_books()
    assert all(job.agents[pid].phase == AgentPhase.QUIESCED for pid in OWNS)


def test_a_process_that_copies_by_itself_shares_with_no_other(made):
    job = made()
    job.target(13).process.copied_out = True
    with pytest.raises(UnsupportedState, match="no worker of gcr can hold the memory of process 13"):
        job.close_books()
    job = made(holds={})
    job.target(13).process.copied_out = True
    job.close_books()


def test_what_was_shared_at_first_and_is_not_at_the_cut_is_not_given_back(made):
    job = made()
    job.close_books()
    for agent in job.agents.values():
        agent.foreign.clear()
    handed_over(job)
    job.undo.roll_back(None)
    assert job.undo.failed == []


def test_memory_that_another_process_holds_is_not_made_anew(made):
    job = made(kept=[(12, 1)])
    job.keeper.forget(12)
    job.worker.forfeit("12.1")
    with pytest.raises(UnsupportedState, match="process 12 lends 1 MiB of memory that no keeper holds"):
        job.close_books()
    assert job.target(12).shares.lent == (Lent(1, 11, 11),)


def test_descriptors_come_from_each_process_that_has_some(made):
    job = made({11: [1, 2, 3, 4, 5, 6]}, {})
    owner, memory = job.target(11), job.agents[11].own
    owner.books.suspended = {DEVICE: 1}
    for holder, ids in ((owner.spare, [1]), (job.keeper, [2, 3, 4]), (job.worker.kept, [4, 5])):
        fds = [job.descriptor(memory[id]) for id in ids]
        holder.put(11, ids, fds)
        for fd in fds:
            os.close(fd)
    came = []
    for ids, fds in found(owner, [5, 4, 2, 1]):
        came += [(id, os.fstat(fd).st_ino == memory[id]) for id, fd in zip(ids, fds, strict=True)]
        for fd in fds:
            os.close(fd)
    assert came == [(1, True), (2, True), (4, True), (5, True)]
    with pytest.raises(PeerGone, match="no process holds 1 handles of process 11"):
        [os.close(fd) for _, fds in found(owner, [1, 6]) for fd in fds]


def test_a_holder_that_fails_is_passed_over(made):
    job = made({11: [1]}, {})
    owner = job.target(11)
    owner.books.suspended = {DEVICE: 1}
    fd = job.descriptor(job.agents[11].own[1])
    job.worker.kept.put(11, [1], [fd])
    os.close(fd)

    def gone(_pid):
        raise PeerGone("it has just died")

    owner.keeper = lambda: SimpleNamespace(ids=gone, take=gone)
    assert [[*ids] for ids, fds in found(owner, [1]) if [os.close(fd) for fd in fds]] == [[1]]


def suspended(job: SharingJob, without: int = 0) -> Restore:
    """Returns a restore of a job whose memory its worker has made anew."""
    for agent in job.agents.values():
        agent.phase = AgentPhase.HANDED_OVER
        agent.own = dict(zip(agent.own, (memory(job) for _ in agent.own), strict=True))
        fds = [job.descriptor(number) for number in agent.own.values()]
        job.worker.kept.put(agent.pid, [*agent.own], fds)
        for fd in fds:
            os.close(fd)
    for target in job.targets:
        target.books.suspended = {DEVICE: len(job.agents[target.pid].own) * MiB}
    known = tuple(ProcessDecision(pid, 1, {}, {}) for pid in job.agents)
    decision = DecisionRecord("llm", 7, "data_only", 0.0, known, "nvidia", False)
    targets = [target for target in job.targets if target.pid != without]
    return Restore("llm", targets, decision, job.node, Course("restore", 8, 60.0))


def memory(job: SharingJob) -> int:
    job.fds.append(os.memfd_create("anew"))
    return os.fstat(job.fds[-1]).st_ino


def test_a_restore_gives_each_process_the_new_memory_of_the_others(made):
    job = made()
    restore = suspended(job)
    Join(restore).do(job.undo)
    for target in restore.targets:
        target.imports.give_from_workers(keep=True)
    assert all(agent.has_own and not agent.has_all for agent in job.agents.values())
    GiveForeign(restore).do(job.undo)
    assert all(agent.has_all for agent in job.agents.values())
    assert job.keeper.ids(11) == [1, 2, 3]


def test_a_restore_without_an_owner_is_refused_before_anything_is_touched(made):
    job = made()
    restore = suspended(job, without=12)
    with pytest.raises(OwnerEnded) as caught:
        Join(restore).do(job.undo)
    text = "process 11 holds 1 MiB of device memory of process 12, which has ended while the job was suspended"
    assert caught.value.message == f"{text}, and no process keeps its bytes"
    assert job.said == []


def test_one_that_alone_held_memory_of_others_may_be_missing(made):
    job = made(holds={11: [(12, 1)], 13: [(12, 1)]})
    restore = suspended(job, without=11)
    Join(restore).do(job.undo)
    assert [len(target.borrowed) for target in restore.targets] == [0, 1]


def test_a_restore_without_a_worker_is_refused_where_memory_is_shared(made, monkeypatch):
    job = made()
    restore = suspended(job)
    Join(restore).do(job.undo)
    step = MakeMemory(restore)
    monkeypatch.setattr("gcr.engine.steps.memory.discard", lambda _target: None)
    monkeypatch.setattr(type(restore.targets[0]), "keeps_context", False)
    monkeypatch.setattr(MakeMemory, "_agent_must_copy", lambda *_: True)
    with pytest.raises(UnsupportedState, match="no worker of gcr can hold the memory of process 11"):
        step.do(job.undo)
