"""Channels over a real socket pair: deadlines, silences, deaths, and peers that do not read."""

import os
import socket
import threading
import time

import pytest
from channels import eventually, temporary

from gcr.errors import (
    DeadlinePassed,
    PeerGone,
    UnsupportedState,
)
from gcr.protocol.channel import Channel, Request
from gcr.protocol.pending import SILENCE
from gcr.protocol.seqpacket import receive_packet
from gcr.protocol.wire import (
    Frame,
    FrameType,
    encode,
)

pytestmark = pytest.mark.timeout(30)


def test_a_reply_that_does_not_come_ends_at_the_deadline_and_the_late_one_is_dropped(connect_pair):
    held = []

    def serve(request: Request) -> None:
        if request.json()["op"] == "slow":
            held.append(request)
        else:
            request.reply_json({"n": 2})

    ours, _ = connect_pair(serve)
    began = time.monotonic()
    with pytest.raises(DeadlinePassed):
        ours.call_json("slow", timeout=0.1)
    assert 0.09 < time.monotonic() - began < 20
    assert eventually(lambda: held)
    fd = temporary()
    held[0].reply_json({"n": 1}, [fd])
    os.close(fd)
    assert ours.call_json("fast", timeout=5)[0]["n"] == 2


def test_progress_does_not_move_the_deadline(connect_pair):
    stop = threading.Event()

    def serve(request: Request) -> None:
        while not stop.wait(0.01):
            request.progress({})

    ours, _ = connect_pair(serve)
    with pytest.raises(DeadlinePassed):
        ours.call_json("never", timeout=0.2, on_progress=lambda _: None)
    stop.set()


def test_a_caller_may_give_up_a_peer_of_which_nothing_is_heard(connect_pair):
    """A stopped one does not even say that it is at work."""
    over = threading.Event()
    ours, _ = connect_pair(lambda request: [over.wait(10), request.reply_json({"n": 1})])
    heard = []

    def nothing() -> None:
        heard.append(threading.current_thread())
        if len(heard) == 3:
            raise UnsupportedState("silent")

    with pytest.raises(UnsupportedState):
        ours.call_json("work", timeout=10, on_silence=nothing)
    assert heard == [threading.current_thread()] * 3
    over.set()
    assert ours.call_json("work", timeout=5)[0]["n"] == 1, "the late reply is not taken for this one"


def test_silence_does_not_move_the_deadline(connect_pair):
    over = threading.Event()
    ours, _ = connect_pair(lambda _request: over.wait(10))
    heard = []
    for timeout in (0.1, 0.6):
        with pytest.raises(DeadlinePassed):
            ours.call_json("never", timeout=timeout, on_silence=lambda: heard.append(1))
        assert bool(heard) == (timeout > SILENCE)
    over.set()


def test_progress_that_is_not_read_delays_no_work(raw_pair):
    """A caller that stands still (Ctrl-Z) must not stop the job it asked something of."""
    longest: list[float] = []
    told = threading.Event()

    def serve(request: Request) -> None:
        for step in range(60):  # far more than a socket holds
            began = time.monotonic()
            request.progress({"step": step, "padding": "x" * 32768})
            longest.append(time.monotonic() - began)
        told.set()

    ours, _ = raw_pair(serve)
    ours.send(encode(Frame(FrameType.CALL, 1, b'{"op": "work"}')))
    assert told.wait(25)  # with half a second for each they would take longer
    assert max(longest) < 10


def test_a_peer_that_dies_ends_every_call(connect_pair):
    ours, theirs = connect_pair(lambda request: None)
    errors = []

    def call() -> None:
        try:
            ours.call_json("never", timeout=10)
        except PeerGone as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(ours._pending._waiting) == 5)
    theirs.close()
    for thread in threads:
        thread.join(5)
    assert len(errors) == 5
    assert ours.closed.wait(5)
    with pytest.raises(PeerGone):
        ours.call_json("later", timeout=5)


def test_the_channel_is_closed_before_the_peers_end_is_told(monkeypatch):
    """This holds at any point of the reader thread: the caller may look for the peer's successor at once."""

    def late(sock):
        received = receive_packet(sock)
        time.sleep(0.3)
        return received

    monkeypatch.setattr("gcr.protocol.channel.END_TIMEOUT", 20.0)
    monkeypatch.setattr("gcr.protocol.channel.receive_packet", late)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours).start()
    theirs.close()
    with pytest.raises(PeerGone):
        channel.call_json("anything", timeout=5.0)
    assert channel.closed.is_set()


def test_a_reader_that_is_held_up_delays_no_word_of_the_peers_end(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr("gcr.protocol.channel.END_TIMEOUT", 0.1)
    monkeypatch.setattr("gcr.protocol.channel.receive_packet", lambda _sock: (over.wait(20), (b"", [], False))[1])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours).start()
    theirs.close()
    with pytest.raises(PeerGone):
        channel.call_json("anything", timeout=5.0)
    over.set()
    assert eventually(channel.closed.is_set)


def test_on_close_runs_once_however_often_it_is_closed(raw_pair):
    closed = []
    ours, theirs = raw_pair(on_close=closed.append)
    for _ in range(3):
        theirs.close()
    ours.close()
    assert eventually(lambda: closed == [theirs])
    theirs.close()
    assert closed == [theirs]


def test_a_channel_that_never_started_closes_too():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    closed = []
    channel = Channel(ours, on_close=closed.append)
    channel.close()
    channel.close()
    assert closed == [channel]
    assert channel.closed.is_set()
    assert theirs.recv(1) == b""
    theirs.close()


def test_a_peer_that_does_not_read_ends_a_send_at_its_deadline(raw_pair):
    _, channel = raw_pair()
    began = time.monotonic()
    with pytest.raises(DeadlinePassed):
        for _ in range(100):
            channel.send(Frame(FrameType.PROGRESS, 1, bytes(60_000)), 0.1)
    assert time.monotonic() - began < 5


def test_a_close_frees_a_sender_that_waits_for_room(raw_pair):
    _, channel = raw_pair()
    failed = []

    def flood() -> None:
        try:
            while True:
                channel.send(Frame(FrameType.PROGRESS, 1, bytes(60_000)), 20)
        except PeerGone as error:
            failed.append(error)

    sender = threading.Thread(target=flood)
    sender.start()
    time.sleep(0.1)
    channel.close()
    sender.join(5)
    assert failed
    assert channel.closed.is_set() or channel.closed.wait(5)


def test_a_frame_that_does_not_parse_frees_a_sender_that_waits_for_room(raw_pair):
    ours, channel = raw_pair()
    failed = []

    def flood() -> None:
        try:
            while True:
                channel.send(Frame(FrameType.PROGRESS, 1, bytes(60_000)), 20)
        except PeerGone as error:
            failed.append(error)

    sender = threading.Thread(target=flood)
    sender.start()
    time.sleep(0.1)
    ours.send(b"garbage")
    sender.join(5)
    assert failed
    assert channel.closed.wait(5)
