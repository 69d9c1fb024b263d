"""A follower of events that does not read delays neither the daemon nor other followers."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from channels import eventually

from gcr.api.jobevents import EventBatch, EventsMissed, JobReleased
from gcr.api.requests import EventsRequest
from gcr.config import Config
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.history import BATCH, MOST
from gcr.daemon.server import Connection, Server
from gcr.job.journal import Journal
from gcr.protocol.channel import Channel
from gcr.protocol.wire import Frame, FrameType, HelloRecord, Role, encode
from gcr.rendezvous.presence import Presence

GREAT = MOST + 1000  # events, more than are kept
PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    with socket.socket() as listener:
        yield Server(listener, coordinator, frozenset({os.getuid()}), Presence(tmp_path))
    coordinator.fleet.close()


@pytest.fixture
def reader(server: Server) -> Iterator[Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Connection(server, theirs)
    channel = Channel(ours).start()
    channel.call(FrameType.HELLO, HelloRecord(role=Role.CLIENT).pack(), timeout=PATIENCE)
    yield channel
    channel.close()


def asked(channel: Channel, **request: object) -> EventBatch:
    body = EventsRequest.from_json(request).to_json()
    return EventBatch.from_json(channel.call_json("events", body, timeout=PATIENCE, type=FrameType.COMMAND)[0])


@pytest.fixture
def mute(server: Server) -> Iterator[socket.socket]:
    """Yields the socket of a client that asks for events many times, and reads no answer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Connection(server, theirs)
    body = json.dumps({"op": "events"}).encode()
    with ours:
        ours.send(encode(Frame(FrameType.HELLO, 1, HelloRecord(role=Role.CLIENT).pack())))
        ours.recv(1 << 16)
        for number in range(2, 40):
            ours.send(encode(Frame(FrameType.COMMAND, number, body)))
        yield ours


def stuck() -> int:
    """Returns how many threads serve requests of clients."""
    return sum(thread.name.startswith("gcr-serve-process") for thread in threading.enumerate())


def noted(server: Server, count: int) -> None:
    for _ in range(count):
        server.coordinator.jobs.history.note(os.getuid(), JobReleased(job="llm"))


def test_a_follower_that_reads_nothing_delays_neither_events_nor_others(
    server: Server, reader: Channel, request: pytest.FixtureRequest
) -> None:
    noted(server, BATCH)
    request.getfixturevalue("mute")
    assert eventually(lambda: stuck() > 8, PATIENCE), "it cannot be answered any more"
    noting = threading.Thread(target=noted, args=(server, GREAT))
    noting.start()
    noting.join(PATIENCE)
    assert not noting.is_alive()
    assert stuck() > 8
    last = asked(reader, after=None).last
    assert last == 1 + BATCH + GREAT
    missed, first, *_ = asked(reader, after=2).events
    assert isinstance(missed, EventsMissed)
    assert (missed.count, first.seq) == (last - MOST - 2, last - MOST + 1)


def test_a_command_that_waits_for_events_keeps_no_daemon_from_ending(
    server: Server, reader: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, waits = server.coordinator.jobs.history, threading.Event()
    answer = history.asked
    monkeypatch.setattr(history, "asked", lambda *words: (waits.set(), answer(*words))[1])
    following = threading.Thread(target=asked, args=(reader,), kwargs={"after": 1, "wait_s": PATIENCE})
    following.start()
    assert waits.wait(PATIENCE)
    assert server.close_if_idle() == ""
    noted(server, 1)
    following.join(PATIENCE)
    assert not following.is_alive()
