"""The daemon does not wait for a supervisor that was stopped while it makes the processes of a parked job again."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Event, Timer

import pytest

from gcr.errors import DeadlinePassed
from gcr.peers import supervisor
from gcr.peers.supervisor import SupervisorPeer
from gcr.protocol.channel import Channel, Request


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def may_answer() -> Event:
    return Event()


@pytest.fixture
def peer(pid: int, may_answer: Event) -> Iterator[SupervisorPeer]:
    """Yields a supervisor that is stopped once it has heard, and answers all the same when it may."""

    def serve(request: Request) -> None:
        os.kill(pid, signal.SIGSTOP)
        may_answer.wait(10)
        request.reply_json()

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channels = [Channel(ours).start(), Channel(theirs, serve).start()]
    yield SupervisorPeer(channels[0], pid)
    may_answer.set()
    for channel in channels:
        channel.close()
        channel.closed.wait(10)


def test_one_that_is_stopped_for_long_is_given_up(
    peer: SupervisorPeer, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOPPED_S", 0.4)
    with pytest.raises(DeadlinePassed, match=f"the job's supervisor, process {pid}, is stopped") as given_up:
        peer.unpark(60.0)
    assert given_up.value.hint == f"kill -CONT {pid}; then try again"


def test_one_that_is_stopped_for_a_moment_is_waited_for(peer: SupervisorPeer, may_answer: Event) -> None:
    Timer(1.0, may_answer.set).start()
    peer.unpark(60.0)
