"""Marks that keep agents away from the socket: the daemon's own, and those that a dead daemon left."""

import logging

import pytest

from gcr.daemon.seat import Seat
from gcr.protocol.seqpacket import connect
from gcr.rendezvous import away
from gcr.rendezvous.folder import DaemonFolder


@pytest.fixture
def path(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run" / "s"


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_mark_is_a_file_beside_the_socket_named_after_the_pid(path):
    away.mark(path, 17)
    away.mark(path, 17)
    away.mark(path, 170)
    assert names(path) == ["s.away.17", "s.away.170"]
    away.unmark(path, 17)
    away.unmark(path, 17)
    assert names(path) == ["s.away.170"]


def test_no_mark_is_written_through_a_link(path, tmp_path):
    (tmp_path / "elsewhere").write_text("kept")
    path.with_name("s.away.17").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        away.mark(path, 17)


def test_a_daemon_removes_the_marks_of_a_former_one_once_it_serves(path, monkeypatch):
    for pid in (17, 170):
        away.mark(path, pid)
    for other in ("s.away.x", "s.away", "t.away.17"):
        path.with_name(other).touch()
    monkeypatch.setattr("gcr.daemon.seat.unmark_all", removed_while_it_serves)
    seat = Seat.take(path, DaemonFolder.of(path), 0.2)
    assert names(path) == ["s", "s.away", "s.away.x", "s.lock", "t.away.17"]
    seat.listener.close()


def removed_while_it_serves(path):
    connect(path, 1.0).close()
    away.unmark_all(path)


def test_a_mark_that_cannot_be_removed_is_named(path, caplog):
    path.with_name("s.away.17").mkdir()
    away.mark(path, 18)
    with caplog.at_level(logging.ERROR, "gcr.daemon"):
        away.unmark_all(path)
    assert "s.away.17" in caplog.text
    assert names(path) == ["s.away.17"]


def test_a_folder_that_cannot_be_read_keeps_no_daemon_from_serving(path, caplog, monkeypatch):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(away, "listed", refuse)
    with caplog.at_level(logging.ERROR):
        away.unmark_all(path)
    assert "may stay there: [Errno 13] Permission denied" in caplog.text
