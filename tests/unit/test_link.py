"""The supervisor's line to the daemon: what it is asked it does in that order, and it keeps nothing of the dead."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from channels import open_descriptors

from gcr.errors import DaemonUnavailable, NameTaken, WrongState
from gcr.memory.escrow import Escrow
from gcr.protocol.channel import Channel, Request
from gcr.protocol.operations.daemon import Register, Registered
from gcr.protocol.wire import FrameType, WelcomeRecord
from gcr.rendezvous import away
from gcr.supervisor import link as module
from gcr.supervisor.link import DaemonLink
from gcr.testing.machine import until


class Slow(Escrow):
    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        time.sleep(0.2)
        super().put(pid, ids, fds)


def _serve(request: Request) -> None:
    if request.frame.type == FrameType.HELLO:
        request.reply(WelcomeRecord(1, 0, os.getpid(), 1, "0").pack())
    else:
        request.reply_json({"name": "llm"})


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> DaemonLink:
    return DaemonLink(lambda: Register("t", ("true",), "llm"), Slow())


@pytest.fixture
def daemon(link: DaemonLink, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(DaemonLink, "_reach", lambda _self: theirs)
    channel = Channel(ours, _serve).start()
    link._connect()
    yield channel
    link.close()
    channel.close()


def test_a_supervisor_does_what_it_is_asked_in_that_order(link: DaemonLink, daemon: Channel) -> None:
    """A supervisor that was stopped meanwhile would else close the memory that came back and keep the former."""
    with Path("/dev/null").open() as file:
        pid = os.getpid()
        daemon.send_json(FrameType.CALL, 101, {"op": "put", "pid": pid, "ids": [1]}, [file.fileno()], 1.0)
        daemon.call_json("drop", {"pid": pid, "ids": [1]}, timeout=5.0)
    time.sleep(0.5)
    assert link.escrow.ids(pid) == []


def test_a_supervisor_lets_go_of_a_process_that_has_ended(link: DaemonLink, daemon: Channel) -> None:
    """Its pid may be given to another process, and the daemon that knew of its end may have died."""
    with subprocess.Popen(["/bin/sleep", "60"]) as ended, Path("/dev/null").open() as file:
        daemon.call_json("put", {"pid": ended.pid, "ids": [1]}, [file.fileno()], timeout=5.0)
        assert daemon.call_json("ids", {"pid": ended.pid}, timeout=5.0)[0]["ids"] == [1]
        ended.kill()
    assert daemon.call_json("ids", {"pid": ended.pid}, timeout=5.0)[0]["ids"] == []


def refusing(refusals: int, made: list[Channel]) -> Callable[[DaemonLink], socket.socket]:
    """Returns a way to a daemon that refuses so many registrations, each after a greeting."""

    def serve(request: Request) -> None:
        if request.frame.type != FrameType.HELLO and len(made) <= refusals:
            raise NameTaken("there is a job 'llm' already")
        _serve(request)

    def reach(_link: DaemonLink) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.append(Channel(ours, serve).start())
        return theirs

    return reach


def test_a_line_whose_registration_is_refused_is_closed(link: DaemonLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor tries again ten times a second for as long as its job runs."""
    made: list[Channel] = []
    monkeypatch.setattr(DaemonLink, "_reach", refusing(20, made))
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(NameTaken):
            link._connect()
    assert all(channel.closed.wait(5.0) for channel in made)
    until(lambda: open_descriptors() <= before, 20, "the descriptors are closed")


def test_the_end_of_a_refused_line_does_not_end_the_next(link: DaemonLink, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Channel] = []
    monkeypatch.setattr(DaemonLink, "_reach", refusing(1, made))
    with pytest.raises(NameTaken):
        link._connect()
    link.open()
    try:
        assert made[0].closed.wait(5.0)
        assert not made[1].closed.wait(0.3)
        assert len(made) == 2, "it has connected once more"
        made[1].close()
        until(lambda: len(made) == 3, 20, "the supervisor connects again")
    finally:
        link.close()
        for channel in made:
            channel.close()


def test_a_line_that_ends_right_after_its_registration_is_lost(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Channel] = []
    monkeypatch.setattr(DaemonLink, "_reach", refusing(0, made))
    asked = module._asked

    def asked_and_ended(channel: Channel, operation: Register) -> Registered:
        answer = asked(channel, operation)
        if len(made) == 1:
            made[0].close()
            assert channel.closed.wait(5.0)
        return answer

    monkeypatch.setattr(module, "_asked", asked_and_ended)
    link.open()
    try:
        until(lambda: len(made) == 2, 20, "the supervisor connects again")
    finally:
        link.close()
        for channel in made:
            channel.close()


def test_a_supervisor_leaves_while_its_mark_is_there(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    made: list[Channel] = []
    monkeypatch.setattr(DaemonLink, "_reach", refusing(0, made))
    before = open_descriptors()
    link.open()
    with Path("/dev/null").open() as file:
        made[0].call_json("put", {"pid": os.getpid(), "ids": [1]}, [file.fileno()], timeout=5.0)
    with pytest.raises(WrongState, match="no mark keeps"):  # it would be back at once
        made[0].call_json("leave", timeout=5.0)
    away.mark(tmp_path / "s", "t", os.getpid())
    try:
        made[0].call_json("leave", timeout=5.0)
        assert made[0].closed.wait(5.0)
        until(lambda: open_descriptors() <= before, 20, "nothing of it is open")
        time.sleep(0.3)
        assert len(made) == 1
        away.unmark_job(tmp_path / "s", "t")
        until(lambda: len(made) == 2, 20, "the supervisor connects again")
    finally:
        link.close()
        for channel in made:
            channel.close()


@pytest.mark.parametrize("how", ["told", "left"])
def test_a_supervisor_in_a_container_starts_no_daemon(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """It would serve the container alone, at the socket of the host's daemon."""
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    started: list[int] = []
    monkeypatch.setattr(module, "launch", lambda: started.append(1))
    with pytest.raises((OSError, DaemonUnavailable)):
        link._reach()
    assert started == [1]
    made: list[Channel] = []
    with monkeypatch.context() as patch:
        patch.setattr(DaemonLink, "_reach", refusing(0, made))
        patch.setattr(module, "_asked", lambda _channel, _asked: Registered("llm", contained=how == "told"))
        link._connect()
    if how == "left":
        away.mark(tmp_path / "s", "t", os.getpid())
        made[0].call_json("leave", timeout=5.0)
    link._last_launch = float("-inf")
    with pytest.raises((OSError, DaemonUnavailable)):
        link._reach()
    assert started == [1]
    made[0].close()
