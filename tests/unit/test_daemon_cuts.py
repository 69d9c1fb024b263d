"""Cuts that jobs of a daemon are parts of: each has one part here, and hears its own coordinator's user alone."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from msgspec.structs import replace
from records import RECORD

from gcr.api.barriers import Barrier
from gcr.api.listings import CutInfo
from gcr.api.requests import CheckpointRequest, CutRequest, RestoreRequest
from gcr.cuterrors import CannotHold, CutTaken, NoSuchCut
from gcr.daemon.cuts import Cuts, refuse_to_bring_back, refuse_to_suspend
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.permission import OURSELVES, Caller
from gcr.engine.node import Course, World
from gcr.errors import NotOurs, UsageError, WrongState
from gcr.job.decisions import DecisionRecord, of_text, text_of
from gcr.job.process import Process
from gcr.job.states import Way
from gcr.processes import identify
from gcr.standstill.messages import Lead, Report
from gcr.testing.machine import until

CUT = "0123456789abcdef" * 2
SUSPENDED: DecisionRecord = replace(RECORD, cut=CUT)


@pytest.fixture
def job() -> Job:
    return Job("llm", "", World("nvidia"))


@pytest.fixture
def cuts(job: Job) -> Cuts:
    jobs = Jobs()
    jobs.add(job)
    return Cuts(jobs)


def joined(cuts: Cuts, job: Job, over: ExitStack, cut: str | None = CUT) -> Course:
    course = Course("checkpoint", 1, 30.0)
    over.enter_context(cuts.joining(CheckpointRequest(target=job.name, cut=cut), job, course, 1.0))
    return course


def test_a_word_reaches_the_part_of_its_cut(cuts: Cuts, job: Job):
    with ExitStack() as over:
        course = joined(cuts, job, over)
        assert course.cut == CUT
        cuts.told(CutRequest(id=CUT, barrier=Barrier.STILL), OURSELVES)
        assert course.part
        assert (course.part.gone, course.part.is_given_up) == ({Barrier.STILL}, False)
        cuts.told(CutRequest(id=CUT), OURSELVES)
        assert course.part.is_given_up
    with pytest.raises(NoSuchCut):
        cuts.told(CutRequest(id=CUT), OURSELVES)


def test_an_order_reaches_the_ranks_of_its_part_and_their_answer_comes_back(cuts: Cuts, job: Job):
    report = Report(70, 0, False, 0, 0, -0.5)
    order = CutRequest(id=CUT, lead=Lead())
    with ExitStack() as over, ThreadPoolExecutor(1) as pool:
        course = joined(cuts, job, over)
        with pytest.raises(NoSuchCut, match="cannot be led just now"):
            cuts.told(order, OURSELVES)
        waits = pool.submit(course.hold, Barrier.APART, lambda _lead: (report,))
        until(lambda: cuts.of(job), 10, "it waits")
        assert cuts.told(order, OURSELVES) == (report,)
        cuts.told(CutRequest(id=CUT, barrier=Barrier.APART), OURSELVES)
        assert waits.result(10) is Barrier.APART


def test_another_user_has_no_word_in_it(cuts: Cuts, job: Job):
    job.owner = os.getuid()
    stranger = Caller(uid=4242)
    with ExitStack() as over:
        course = joined(cuts, job, over)
        with pytest.raises(NotOurs):
            cuts.told(CutRequest(id=CUT), stranger)
        assert course.part
        assert not course.part.is_given_up


def test_a_node_has_one_part_in_a_cut(cuts: Cuts, job: Job):
    with ExitStack() as over:
        joined(cuts, job, over)
        with pytest.raises(CutTaken, match="just now"):
            joined(cuts, job, over)
    with ExitStack() as over:
        joined(cuts, job, over)


def test_an_id_that_has_suspended_a_job_is_taken(cuts: Cuts, job: Job):
    job.decision = SUSPENDED
    with ExitStack() as over, pytest.raises(CutTaken, match="suspended job llm"):
        joined(cuts, job, over)


def test_without_an_id_it_is_no_part(cuts: Cuts, job: Job):
    with ExitStack() as over:
        assert joined(cuts, job, over, cut=None).part is None


def test_a_row_of_ps_says_where_the_job_waits_and_by_what_it_was_suspended(cuts: Cuts, job: Job):
    assert cuts.of(job) is None
    with ExitStack() as over:
        course = joined(cuts, job, over)
        assert cuts.of(job) is None
        assert course.part
        course.part.at = Barrier.ADMITTED
        assert cuts.of(job) == CutInfo(id=CUT, barrier="admitted")
    job.decision = SUSPENDED
    assert cuts.of(job) == CutInfo(id=CUT, barrier=None)
    job.decision = replace(SUSPENDED, kind="restored")
    assert cuts.of(job) is None


def test_the_record_of_a_decision_keeps_the_cut_and_an_earlier_one_has_none():
    assert of_text(text_of(SUSPENDED)).cut == CUT
    assert (
        DecisionRecord.from_json(
            {"job": "llm", "transaction": 1, "kind": "checkpoint", "decided_at": 0.0}
            | {"processes": [], "backend": "nvidia", "simulated": True}
        ).cut
        == ""
    )


def test_what_cannot_wait_is_refused_by_name(job: Job):
    job.decision = replace(RECORD, kind="driver")
    with pytest.raises(CannotHold, match="the driver alone"):
        refuse_to_bring_back(job)
    job.decision = replace(RECORD, away="token")
    with pytest.raises(CannotHold, match="in an image"):
        refuse_to_bring_back(job)
    with pytest.raises(WrongState, match="suspended already"):
        refuse_to_suspend(job)
    job.decision = None
    own = identify(os.getpid())
    assert own
    job.processes[own.pid] = Process("llm", own, way=Way.DRIVER)
    with pytest.raises(CannotHold, match="the driver alone"):
        refuse_to_suspend(job)


@pytest.mark.parametrize("cut", ["", "x", "0" * 31, "0" * 33, "G" * 32, "0" * 31 + "A"])
def test_an_id_is_32_hexadecimal_digits(cut: str):
    for made in (lambda: CheckpointRequest(target="llm", cut=cut), lambda: CutRequest(id=cut)):
        with pytest.raises(UsageError, match="32 hexadecimal digits"):
            made()


def test_an_image_of_a_part_that_runs_on_has_its_processes_and_a_part_comes_back_as_a_whole():
    with pytest.raises(UsageError, match="has the processes"):
        CheckpointRequest(target="llm", cut=CUT, image="warm", leave_running=True)
    CheckpointRequest(target="llm", cut=CUT, image="warm", leave_running=True, processes=True)
    with pytest.raises(UsageError, match="made again"):
        RestoreRequest(target="llm", cut=CUT, revive=True)
    with pytest.raises(UsageError, match="as a whole"):
        RestoreRequest(target="llm", cut=CUT, without=(7,))
