"""Hostile peers: on any input the connection at most closes, and no descriptor, thread or word gets out."""

import contextlib
import os
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.protocol import servers
from gcr.protocol.channel import Channel, Request
from gcr.protocol.servers import MAX_SERVING, MAX_WAITING
from gcr.protocol.wire import (
    ERROR,
    JSON_TYPES,
    MAGIC,
    MAX_DESCRIPTORS,
    MAX_FRAME,
    REPLY,
    VERSION,
    Frame,
    FrameHeader,
    FrameType,
    decode,
    encode,
)

pytestmark = pytest.mark.timeout(60)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def eventually(true, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.002)
    return done


@contextlib.contextmanager
def victim(serve):
    """A bare socket to a serving channel; afterwards nothing of it may be left open."""
    before = count_descriptors()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(5)
    channel = Channel(theirs, serve, name="victim").start()
    try:
        yield ours, channel
    finally:
        ours.close()
        assert channel.closed.wait(5)
        assert eventually(lambda: count_descriptors() <= before), "descriptors leaked"


def curious(request: Request) -> None:
    """Looks at all there is to look at, and takes no descriptor."""
    if request.frame.type in JSON_TYPES:
        request.json()
    request.reply(b"")


def send(sock: socket.socket, packet: bytes, fds: list[int]) -> bool:
    try:
        socket.send_fds(sock, [packet], fds) if fds else sock.send(packet)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


headers = st.builds(
    FrameHeader,
    st.one_of(st.just(MAGIC), st.integers(0, 0xFFFFFFFF)),
    st.one_of(st.just(VERSION), st.integers(0, 0xFFFF)),
    st.one_of(st.sampled_from([*FrameType, ERROR, *(REPLY | t for t in FrameType)]), st.integers(0, 0xFFFF)),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 300),
    st.integers(0, 4),
).map(FrameHeader.pack)
packets = st.one_of(st.binary(max_size=300), st.tuples(headers, st.binary(max_size=300)).map(b"".join))


@settings(max_examples=60)
@given(st.lists(st.tuples(packets, st.integers(0, 3)), max_size=8))
def test_random_packets_leave_nothing_behind(sent):
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        with victim(curious) as (ours, _):
            all(send(ours, packet, [fd] * fds) for packet, fds in sent)
    finally:
        os.close(fd)


def mutated(rng: random.Random) -> bytes:
    """A good frame with one thing wrong, most times."""
    payload = rng.randbytes(rng.randrange(100))
    good = encode(Frame(rng.choice(list(FrameType)), rng.getrandbits(64), payload))
    match rng.randrange(4):
        case 0:
            return good[: rng.randrange(len(good))]
        case 1:
            return good + rng.randbytes(rng.randrange(1, 50))
        case 2:
            at = rng.randrange(24)
            return good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
        case _:
            return good


def answers(sock: socket.socket, request: int) -> bool:
    """Returns True if the peer answers this request before the connection ends."""
    with contextlib.suppress(ConnectionResetError):
        while packet := sock.recv(MAX_FRAME):
            if decode(packet).request == request:
                return True
    return False


def test_a_thousand_broken_frames_each_at_most_close_their_own_connection():
    rng = random.Random(20)
    fd = os.open("/dev/null", os.O_RDONLY)
    closed = 0
    with victim(curious) as (bystander, _):
        for _ in range(1000):
            with victim(curious) as (ours, _):
                send(ours, mutated(rng), [fd] * rng.choice([0, 0, 0, 1, 3]))
                send(ours, encode(Frame(FrameType.STATUS, 77)), [])
                closed += not answers(ours, 77)
        bystander.send(encode(Frame(FrameType.STATUS, 1)))
        assert decode(bystander.recv(MAX_FRAME)).request == 1
    os.close(fd)
    assert 100 < closed < 1000


@pytest.mark.parametrize("announced, sent", [(0, 1), (1, 0), (2, 1), (1, MAX_DESCRIPTORS), (MAX_DESCRIPTORS + 1, 0)])
def test_a_wrong_number_of_descriptors_closes_the_connection_and_them(announced, sent):
    fd = os.open("/dev/null", os.O_RDONLY)
    with victim(curious) as (ours, channel):
        send(ours, FrameHeader(MAGIC, VERSION, FrameType.STATUS, 1, 0, announced).pack(), [fd] * sent)
        assert channel.closed.wait(5)
    os.close(fd)


def test_a_packet_longer_than_a_frame_closes_the_connection():
    with victim(curious) as (ours, channel):
        header = FrameHeader(MAGIC, VERSION, FrameType.STATUS, 1, MAX_FRAME, 0).pack()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.send(header + bytes(MAX_FRAME))
        assert channel.closed.wait(5)


def test_an_empty_packet_with_descriptors_ends_the_connection_and_closes_them():
    fd = os.open("/dev/null", os.O_RDONLY)
    with victim(curious) as (ours, channel):
        socket.send_fds(ours, [b""], [fd, fd])
        assert channel.closed.wait(5)
    os.close(fd)


def test_replies_that_are_not_waited_for_are_dropped_with_their_descriptors():
    fd = os.open("/dev/null", os.O_RDONLY)
    with victim(curious) as (ours, channel):
        for kind in (REPLY | FrameType.EXPORT, ERROR, FrameType.PROGRESS):
            for _ in range(50):
                socket.send_fds(ours, [encode(Frame(kind, 5, b"{}", [fd]))], [fd])
        ours.send(encode(Frame(FrameType.STATUS, 9)))
        assert decode(ours.recv(MAX_FRAME)).request == 9
        assert not channel.closed.is_set()
    os.close(fd)


def test_a_flood_is_refused_beyond_a_bound_and_served_up_to_it():
    release = threading.Event()
    served = []

    def slow(request: Request) -> None:
        release.wait(20)
        served.append(request.frame.request)
        request.reply_json()

    limit = MAX_SERVING + MAX_WAITING
    with victim(slow) as (ours, _):
        before = {*threading.enumerate()}
        for number in range(limit + 10):
            ours.send(encode(Frame(FrameType.CALL, number, b"{}")))
        refused = [decode(ours.recv(MAX_FRAME)) for _ in range(10)]
        assert all(b"too many requests" in frame.payload for frame in refused)
        assert len({*threading.enumerate()} - before) <= MAX_SERVING
        release.set()
        answered = {decode(ours.recv(MAX_FRAME)).request for _ in range(limit)}
        assert answered == set(range(limit)) == set(served)


def test_a_flood_of_requests_whose_answers_are_not_read_ends_with_the_connection():
    with victim(curious) as (ours, channel):
        ours.settimeout(0.5)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            for number in range(5000):
                ours.send(encode(Frame(FrameType.STATUS, number)))
        ours.close()
        assert channel.closed.wait(10)


def test_nothing_of_a_dead_peer_s_requests_keeps_a_thread(monkeypatch):
    monkeypatch.setattr(servers, "IDLE_S", 0.05)  # some would wait for another request
    before = {*threading.enumerate()}
    with victim(curious) as (ours, _):
        for number in range(100):
            ours.send(encode(Frame(FrameType.STATUS, number)))
    assert eventually(lambda: {*threading.enumerate()} <= before)
