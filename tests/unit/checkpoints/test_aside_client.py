"""A program's end of a save of its device memory, with a daemon that says nothing."""

import socket
from pathlib import Path

import pytest

from gcr.checkpoints.aside import Aside, Span
from gcr.errors import DaemonUnavailable, DeadlinePassed, GcrError
from gcr.protocol.seqpacket import listen

LONG = 20.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("GCR_TOKEN", "t")
    return tmp_path / "s"


def closed(listener: socket.socket) -> bool:
    """Returns whether the other end leaves after its greeting."""
    taken, _ = listener.accept()
    with taken:
        taken.settimeout(LONG)
        return bool(taken.recv(1000)) and not taken.recv(1000)


def test_a_save_is_prepared_without_a_wait_for_the_daemon(place: Path) -> None:
    with listen(place) as listener:
        save = Aside(0.3)  # it greets meanwhile
        with pytest.raises(DeadlinePassed):
            save.begin([Span(1 << 20, 5)], lambda: None)
        assert closed(listener)
    assert isinstance(save.arrived.exception(LONG), GcrError)


def test_a_save_that_is_given_up_before_it_is_greeted_leaves_no_connection(place: Path) -> None:
    with listen(place) as listener:
        save = Aside(1.0)
        save.give_up()
        assert closed(listener)
    assert isinstance(save.safe.exception(LONG), GcrError)


def test_a_save_without_a_daemon_says_so_when_it_begins(place: Path) -> None:
    save = Aside(LONG)
    with pytest.raises(DaemonUnavailable):
        save.begin([Span(1 << 20, 5)], lambda: None)
    assert isinstance(save.arrived.exception(LONG), DaemonUnavailable)
