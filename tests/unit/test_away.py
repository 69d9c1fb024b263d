"""Marks that keep agents away from the socket: the daemon's own, and those that a dead daemon left."""

import logging
import os

import pytest

from gcr.config import Config
from gcr.daemon import survivors
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.coordinator import Coordinator
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.journal import Journal
from gcr.job.states import State
from gcr.processes import identify
from gcr.rendezvous import away


@pytest.fixture
def path(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run" / "s"


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_mark_is_a_file_beside_the_socket_named_after_the_job_and_the_pid(path):
    away.mark(path, "ab12", 17)
    away.mark(path, "ab12", 17)
    away.mark(path, "ab12", 170)
    away.mark(path, "cd", 17)  # of another container
    assert names(path) == ["s.away.ab12.17", "s.away.ab12.170", "s.away.cd.17"]
    assert away.is_marked(path, "ab12", 17) and not away.is_marked(path, "ab", 17)
    away.unmark_job(path, "ab12")
    away.unmark_job(path, "ab12")
    assert names(path) == ["s.away.cd.17"]


def test_a_token_leads_to_no_other_folder_and_is_as_long_as_in_a_hello(path):
    away.mark(path, "../a.b" + 50 * "c", 17)
    assert names(path) == ["s.away.---a-b" + 34 * "c" + ".17"]


def test_no_mark_is_written_through_a_link(path, tmp_path):
    (tmp_path / "elsewhere").write_text("kept")
    path.with_name("s.away.t.17").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        away.mark(path, "t", 17)


def test_a_daemon_removes_the_marks_of_a_former_one_but_for_jobs_that_a_runtime_is_to_save(path, monkeypatch):
    monkeypatch.setenv("GCR_SOCKET", str(path))
    monkeypatch.setattr(survivors, "_recall", lambda *_: None)  # it asks the devices
    for token, pid in (("t", 17), ("t", 170), ("kept", 1), ("kept", 8), ("kep", 1)):
        away.mark(path, token, pid)
    for other in ("s.away.x", "s.away", "t.away.t.17"):
        path.with_name(other).touch()
    node = Coordinator(Config(), Journal(path.parent / "journal"))
    identity = identify(os.getpid())
    known = ProcessDecision(identity.pid, identity.start_time, {"GPU-1": 5}, {}, stack=identity.stack)
    kept = KeptImage("/store", "night")
    node.journal.decide(DecisionRecord("llm", 7, "checkpoint", 1.0, (known,), "nvidia", True, image=kept, away="kept"))
    come = []
    Arrivals(node, come=come.append).load_journal()
    assert names(path) == ["journal", "s.away", "s.away.kept.1", "s.away.kept.8", "s.away.x", "t.away.t.17"]
    (job,) = node.jobs.all()
    assert (job.state, job.token, job.ends.stopped_into) == (State.SUSPENDED, "kept", kept)
    assert come == [identity]  # no command waits for its agent
    assert job.turn.settled.is_set()


def test_a_mark_that_cannot_be_removed_is_named(path, caplog):
    path.with_name("s.away.t.17").mkdir()
    away.mark(path, "t", 18)
    with caplog.at_level(logging.ERROR, "gcr.daemon"):
        away.unmark_all(path)
    assert "s.away.t.17" in caplog.text
    assert names(path) == ["s.away.t.17"]


def test_a_folder_that_cannot_be_read_keeps_no_daemon_from_serving(path, caplog, monkeypatch):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(away, "listed", refuse)
    with caplog.at_level(logging.ERROR):
        away.unmark_all(path)
    assert "may stay there: [Errno 13] Permission denied" in caplog.text
