"""Channels over a real socket pair: frames that are wrong, descriptors without room, and many threads."""

import contextlib
import os
import resource
import socket
import threading

import pytest
from channels import descriptors, echo, temporary

from gcr.errors import (
    PeerGone,
)
from gcr.protocol.channel import AgentError, BadFrame
from gcr.protocol.wire import (
    ERROR,
    REPLY,
    ErrorCode,
    ErrorRecord,
    Frame,
    FrameType,
    decode,
    encode,
)

pytestmark = pytest.mark.timeout(30)


def test_the_peer_is_the_kernels_word(raw_pair):
    _, channel = raw_pair()
    assert (channel.peer.pid, channel.peer.uid, channel.peer.gid) == (os.getpid(), os.getuid(), os.getgid())


@pytest.mark.parametrize(
    "payload", [b"not json", b"[1]", b'"text"', b"\xff\xfe", b"[" * 30_000, b'{"in_descriptor": 5}']
)
def test_a_body_that_is_no_json_object_closes_the_connection(raw_pair, payload):
    ours, channel = raw_pair(echo)
    ours.send(encode(Frame(FrameType.CALL, 1, payload)))
    assert channel.closed.wait(5)
    assert ours.recv(100) == b""


def test_a_large_body_is_read_from_a_sealed_memfd_only(raw_pair):
    for fd, size in ((temporary(b'{"op": 1}'), 9), (os.open("/dev/zero", os.O_RDONLY), 9)):
        ours, channel = raw_pair(echo)
        frame = Frame(FrameType.CALL, 1, b'{"in_descriptor": %d}' % size, [fd])
        socket.send_fds(ours, [encode(frame)], [fd])
        os.close(fd)
        assert channel.closed.wait(5)


def test_a_reply_of_the_wrong_type_closes_the_connection_and_ends_the_call(raw_pair):
    ours, channel = raw_pair()

    def answer() -> None:
        request = decode(ours.recv(65536))
        ours.send(encode(Frame(REPLY | FrameType.MAP, request.request)))

    peer = threading.Thread(target=answer)
    peer.start()
    with pytest.raises(PeerGone):
        channel.call(FrameType.RESUME, timeout=5)
    peer.join(5)
    assert channel.closed.wait(5)


def test_a_reply_that_is_no_json_closes_the_connection(connect_pair):
    ours, _ = connect_pair(lambda request: request.reply(b"not json"))
    with pytest.raises(BadFrame):
        ours.call_json("any", timeout=5)
    assert ours.closed.wait(5)


@contextlib.contextmanager
def room_for_descriptors(more: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, descriptors()))
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))
    try:
        while len(descriptors()) < highest + 1:
            fillers.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)


def test_a_process_without_room_for_descriptors_says_so_and_goes_on(raw_pair):
    ours, _ = raw_pair(lambda request: request.reply(b"served"))
    fd = temporary()
    with room_for_descriptors(3):
        socket.send_fds(ours, [encode(Frame(FrameType.IMPORT, 5, b"", [fd] * 20))], [fd] * 20)
        answer = decode(ours.recv(65536))
    os.close(fd)
    assert (answer.type, answer.request) == (ERROR, 5)
    assert ErrorRecord.unpack(answer.payload).code == ErrorCode.NO_DESCRIPTORS
    ours.send(encode(Frame(FrameType.STATUS, 6)))
    assert decode(ours.recv(65536)).payload == b"served"


def test_a_reply_whose_descriptors_found_no_room_is_an_error_to_the_caller(raw_pair):
    ours, channel = raw_pair()
    fd = temporary()

    def answer() -> None:
        request = decode(ours.recv(65536))
        reply = encode(Frame(REPLY | request.type, request.request, b"", [fd] * 20))
        with room_for_descriptors(3):
            socket.send_fds(ours, [reply], [fd] * 20)
            done.wait(5)

    done = threading.Event()
    peer = threading.Thread(target=answer)
    peer.start()
    try:
        with pytest.raises(AgentError) as caught:
            channel.call(FrameType.EXPORT, timeout=5)
    finally:
        done.set()
        peer.join(5)
        os.close(fd)
    assert caught.value.agent_code is ErrorCode.NO_DESCRIPTORS


def test_many_threads_share_a_channel(connect_pair):
    ours, _ = connect_pair(echo)
    wrong = []

    def calls(thread: int) -> None:
        for number in range(50):
            body, _ = ours.call_json("n", {"n": [thread, number]}, timeout=10)
            if body["echo"]["n"] != [thread, number]:
                wrong.append(body)

    threads = [threading.Thread(target=calls, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
