"""The supervisor's line to the daemon: what it is asked it does in that order, and it keeps nothing of the dead."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gcr.memory.escrow import Escrow
from gcr.protocol.channel import Channel, Request
from gcr.protocol.operations.daemon import Register
from gcr.protocol.wire import FrameType, WelcomeRecord
from gcr.supervisor.link import DaemonLink


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
