"""Memory of a process that has ended while its job was suspended: kept exactly as long as another holds some of it."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from gcr.daemon import orphans
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.supervision import Supervision
from gcr.engine.node import World
from gcr.errors import UnsupportedState
from gcr.job.decisions import DecisionRecord, ProcessDecision, of_text, text_of
from gcr.job.process import Process
from gcr.job.states import State
from gcr.job.suspension import Suspension
from gcr.memory.escrow import Escrow
from gcr.memory.layout import SealedTable
from gcr.processes import ProcessIdentity, identify
from gcr.supervisor.offer import Offer

OWNER = ProcessIdentity(4_000_001, 9)
NAME = 1 << 63 | 5
HOLDER = os.getpid()


class Suspended:
    """A suspended job of one living process, and of an owner that has ended and lent it memory."""

    def __init__(self, kind="checkpoint", lent_to=(HOLDER,)):
        holder = identify(HOLDER)
        assert holder
        known = ProcessDecision(OWNER.pid, OWNER.start_time, {"GPU-1": 5}, {}, shared_as=NAME, lent_to=lent_to)
        other = ProcessDecision(holder.pid, holder.start_time, {}, {}, stack=holder.stack)
        self.record = DecisionRecord("llm", 7, kind, 0.0, (known, other), "nvidia", False)
        self.forfeited: list[str] = []
        worker = SimpleNamespace(forfeit=self.forfeited.append)
        self.job = Job("llm", "", World("nvidia"), decision=self.record)
        self.job.processes[holder.pid] = Process("llm", holder, State.SUSPENDED)
        self.owner = Process("llm", OWNER, State.EXITED, suspension=Suspension(7, {"GPU-1": 5}))
        self.job.ends.orphans[OWNER.pid] = self.owner
        self.node = SimpleNamespace(
            jobs=Jobs(),
            fleet=SimpleNamespace(living_workers=lambda: [worker]),
            journal=SimpleNamespace(record=lambda _job: self.record),
        )

    def settle(self) -> bool:
        """Tells whether all is kept."""
        orphans.settle(self.node, self.job)
        kept = OWNER.pid in self.job.ends.orphans
        assert self.forfeited == ([] if kept else [f"{OWNER.pid}.9"])
        return kept


def test_it_is_kept_while_a_holder_lives_and_let_go_with_the_last_one():
    made = Suspended()
    assert made.settle()
    (owner,) = orphans.orphaned(made.node, made.job)
    assert (owner.pid, owner.transaction, owner.shares.process) == (OWNER.pid, 7, NAME)
    assert (owner.ballast_by_device, owner.generation) == ({}, None)
    made.job.processes[HOLDER].end()
    assert not made.settle()
    assert orphans.orphaned(made.node, made.job) == []


@pytest.mark.parametrize("how", [{"kind": "restored"}, {"lent_to": ()}, {"lent_to": (4_000_002,)}])
def test_it_is_let_go_where_no_suspended_process_needs_it(how):
    assert not Suspended(**how).settle()


def test_it_is_let_go_once_the_job_is_back():
    made = Suspended()
    assert made.settle()
    made.record = None
    assert not made.settle()


@pytest.mark.parametrize(("busy", "lent"), [(True, ("a",)), (True, ()), (False, ("a",))])
def test_a_checkpoint_under_way_keeps_what_it_has_of_an_owner_that_ends(busy, lent):
    made = Suspended()
    made.record = None
    made.node.jobs.targets[OWNER.pid] = SimpleNamespace(process=made.owner, shares=SimpleNamespace(lent=lent))
    if busy:
        made.job.turn.take(beside_readers=False)
    assert made.settle() == (busy and bool(lent))


def test_where_the_journal_is_not_read_the_job_itself_says():
    made = Suspended()

    def unreadable(_job):
        raise OSError(5, "disk")

    made.node.journal.record = unreadable
    assert made.settle()


def test_the_daemon_keeps_what_was_staged_beside_the_supervisor(monkeypatch):
    made, supervisor = Suspended(), Escrow()
    stage(supervisor)
    made.job.supervision = Supervision(supervisor=supervisor)
    monkeypatch.setattr(Supervision, "lasts", True)
    assert made.settle()
    assert made.job.supervision.adopted.held() == supervisor.held() == 1
    assert made.settle()
    made.record = None
    assert not made.settle()
    assert made.job.supervision.adopted.held() == supervisor.held() == 0


def test_a_supervisor_keeps_what_was_staged_of_a_process_that_has_ended_until_it_is_told():
    escrow, program = Escrow(), subprocess.Popen(["sleep", "60"])
    offer = Offer(escrow)
    fd = os.open("/dev/null", os.O_RDONLY)
    offer._put(SimpleNamespace(pid=program.pid, ids=(1,)), [fd], None)
    escrow.stage(program.pid, [fd], 0)
    os.close(fd)
    program.kill()
    program.wait()
    offer.forget_ended()
    assert escrow.ids(program.pid) == []
    assert escrow.has_staged(program.pid)
    escrow.forget(program.pid)
    assert escrow.held() == 0


def test_what_a_daemon_never_knew_of_is_forgotten():
    made = Suspended(lent_to=())
    del made.job.ends.orphans[OWNER.pid]
    stage(made.job.supervision.adopted)
    orphans.forget_unneeded(made.job)
    assert made.job.supervision.adopted.held() == 0


def test_no_image_is_made_of_a_job_that_needs_it():
    made = Suspended()
    with pytest.raises(UnsupportedState, match=f"process {OWNER.pid} has ended while job llm was suspended"):
        orphans.refuse_image(made.node, made.job)
    orphans.refuse_image(made.node, Job("other", "", World("nvidia")))


def test_the_record_says_who_holds_it_and_one_of_an_earlier_gcr_nobody():
    record = Suspended().record
    assert of_text(text_of(record)) == record
    earlier = ProcessDecision.from_json({"pid": 1, "start_time": 2, "bytes": {}, "ballast": {}})
    assert (earlier.shared_as, earlier.lent_to) == (0, ())


def stage(escrow: Escrow) -> None:
    table = SealedTable("llm", OWNER.pid, 9, 7, {}, (), (), ())
    fd = table.to_memfd()
    escrow.stage(OWNER.pid, [fd], 0)
    os.close(fd)
