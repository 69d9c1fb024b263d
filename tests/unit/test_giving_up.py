"""Which processes a restore may do without, and what the journal keeps of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.daemon import giving_up
from gcr.daemon.giving_up import Standing, check
from gcr.errors import GcrError, WrongState
from gcr.job.decisions import DecisionRecord, ProcessDecision, Unreturned, of_text, text_of
from gcr.job.journal import Journal
from gcr.job.states import State, job_state
from gcr.losterrors import NotLost, ProcessLost
from gcr.processes import alive, identify

WELL, REFUSED, LOST = Standing.WELL, Standing.REFUSED, Standing.LOST


def record(*unreturned: Unreturned, pid: int = 11, start: int = 1) -> DecisionRecord:
    known = (ProcessDecision(pid, start, {}, {}), ProcessDecision(12, 1, {}, {}))
    return DecisionRecord("llm", 7, "checkpoint", 0.0, known, "nvidia", False, unreturned=unreturned)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ([], {11: WELL, 12: REFUSED}),
        ([11], {11: LOST, 12: WELL}),
        ([11], {11: REFUSED, 12: WELL}),
        ([11, 12], {11: LOST, 12: REFUSED, 13: WELL}),
        ([11], {11: LOST, 12: REFUSED}),  # the other may come back this time
        ([], {11: LOST}),  # the job is lost, and says so
        ([11], {12: WELL}),  # it has ended meanwhile
    ],
)
def test_what_may_begin(asked, there):
    check("llm", asked, there, ended=[11] if 11 not in there else [])


@pytest.mark.parametrize(
    ("asked", "there", "said"),
    [
        ([13], {11: LOST, 12: WELL}, "process 13 is none of job llm"),
        ([12], {11: LOST, 12: WELL}, "has not refused to give process 12"),
        ([11, 12], {11: LOST, 12: WELL}, "has not refused to give process 12"),
        ([11], {11: LOST}, "no other process"),
        ([11, 12], {11: LOST, 12: REFUSED}, "no other process"),
        ([11], {}, "process 11 is none"),
    ],
)
def test_what_is_refused(asked, there, said):
    with pytest.raises(NotLost, match=said):
        check("llm", asked, there)


def test_a_lost_process_that_is_not_named_is_said_with_those_that_are():
    with pytest.raises(ProcessLost) as refused:
        check("llm", [12], {11: LOST, 12: LOST, 13: WELL})
    assert "gcr restore llm --without 11 --without 12 " in refused.value.hint
    with pytest.raises(ProcessLost, match="process 11 of job llm"):
        check("llm", [], {11: LOST, 13: WELL})


@given(
    st.dictionaries(st.integers(1, 5), st.sampled_from(Standing)),
    st.sets(st.integers(1, 6)),
    st.sets(st.integers(1, 6)),
)
def test_nothing_begins_that_resumes_others_unasked_or_ends_one_that_is_well(there, asked, ended):
    ended -= there.keys()
    try:
        check("llm", asked, there, ended)
    except GcrError:
        return
    left = {pid: standing for pid, standing in there.items() if pid not in asked}
    assert all(there[pid] is not WELL for pid in asked & there.keys())
    assert asked <= there.keys() | ended
    assert left or not asked
    assert LOST not in left.values() or {*left.values()} == {LOST}


def test_the_journal_keeps_them(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.decide(record())
    for each in (Unreturned(11), Unreturned(12), Unreturned(11, given_up=True), Unreturned(11)):
        journal.amend("llm", lambda standing, each=each: standing.noting(each))
    found = Journal(tmp_path / "journal").record("llm")
    assert found is not None
    assert {each.pid: each.given_up for each in found.unreturned} == {11: True, 12: False}
    assert found.given_up == {11}
    assert of_text(text_of(found)) == found


def test_a_record_of_an_earlier_gcr_has_none():
    body = text_of(record())
    assert of_text(body).unreturned == ()


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_new_daemon_ends_what_was_given_up_and_no_other():
    given, other = sleeper(), sleeper()
    try:
        one, two = identify(given.pid), identify(other.pid)
        assert one and two
        known = (ProcessDecision(one.pid, one.start_time, {}, {}), ProcessDecision(two.pid, two.start_time, {}, {}))
        standing = DecisionRecord("llm", 7, "checkpoint", 0.0, known, "nvidia", False)
        giving_up.end_given_up(standing.noting(Unreturned(two.pid)))
        assert alive(one) and alive(two)
        giving_up.end_given_up(standing.noting(Unreturned(two.pid)).noting(Unreturned(one.pid, given_up=True)))
        assert not alive(one) and alive(two)
    finally:
        for each in (given, other):
            each.kill()
            each.wait(20)


def test_another_process_of_the_same_pid_is_left_alone():
    giving_up.end_given_up(record(Unreturned(os.getpid(), given_up=True), pid=os.getpid(), start=1))


def test_one_that_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(giving_up, "END_S", 0.05)
    monkeypatch.setattr(giving_up.os, "kill", lambda _pid, _number: None)
    standing = identify(os.getpid())
    assert standing
    giving_up.end_given_up(record(Unreturned(standing.pid, given_up=True), pid=standing.pid, start=standing.start_time))
    with pytest.raises(WrongState, match="has not ended"):
        giving_up._end("llm", [standing])


@pytest.mark.parametrize(
    ("states", "job"),
    [
        ("lost suspended", "suspended"),
        ("lost suspended exited", "suspended"),
        ("lost", "lost"),
        ("lost running", "lost"),
    ],
)
def test_a_job_is_suspended_while_some_can_come_back(states, job):
    assert job_state(map(State, states.split())) == job
