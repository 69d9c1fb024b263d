"""Channels over a real socket pair: calls, progress, errors, descriptors, deadlines and deaths."""

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from gcr.errors import (
    DeadlinePassed,
    GcrError,
    NoDescriptors,
    NoRoom,
    NotOurs,
    PeerGone,
    Refused,
    RolledBack,
    UnsupportedState,
)
from gcr.protocol.agentwire import CountRecord, TransactionRecord
from gcr.protocol.channel import AgentError, BadFrame, Channel, Request
from gcr.protocol.pending import SILENCE
from gcr.protocol.seqpacket import receive_packet
from gcr.protocol.wire import (
    ERROR,
    MAX_DESCRIPTORS,
    REPLY,
    ErrorCode,
    ErrorRecord,
    Frame,
    FrameType,
    StuckError,
    StuckRecord,
    decode,
    encode,
)

pytestmark = pytest.mark.timeout(30)


def descriptors() -> dict[str, str]:
    """Returns the open descriptors of this process, without that of the listing itself."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[entry.name] = str(entry.readlink())
    return found


def eventually(true, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.005)
    return done


@pytest.fixture(autouse=True)
def no_descriptor_is_leaked():
    before = descriptors()
    yield
    assert eventually(lambda: len(descriptors()) <= len(before)), set(descriptors().items()) - set(before.items())


@pytest.fixture
def connect_pair():
    made: list[Channel] = []

    def make(serve=None, **options) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pair = Channel(ours, name="ours").start(), Channel(theirs, serve, name="theirs", **options).start()
        made.extend(pair)
        return pair

    yield make
    for channel in made:
        channel.close()
        assert channel.closed.wait(5)


@pytest.fixture
def raw_pair():
    """A bare socket, and a channel that serves at its other end."""
    made = []

    def make(serve=None, **options) -> tuple[socket.socket, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(5)
        channel = Channel(theirs, serve, name="theirs", **options).start()
        made.append((ours, channel))
        return ours, channel

    yield make
    for ours, channel in made:
        ours.close()
        assert channel.closed.wait(5)


def temporary(content: bytes = b"x") -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def content(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


def echo(request: Request) -> None:
    """JSON: the body and the descriptors again. Other frames: the payload."""
    if request.frame.type != FrameType.CALL:
        request.reply(request.frame.payload)
        return
    body = request.json()
    fds = request.take_fds()
    try:
        request.reply_json({"echo": body}, fds)
    finally:
        for fd in fds:
            os.close(fd)


def raising(error: BaseException):
    def serve(_request: Request) -> None:
        raise error

    return serve


def test_a_record_goes_there_and_a_record_comes_back(connect_pair):
    ours, _ = connect_pair(lambda request: request.reply(CountRecord(7, 3, 4096).pack()))
    reply = ours.call(FrameType.HAND_OVER, TransactionRecord(7).pack(), timeout=5)
    assert reply.type == REPLY | FrameType.HAND_OVER
    assert CountRecord.unpack(reply.payload) == CountRecord(7, 3, 4096)


def test_both_sides_may_call_at_once(connect_pair):
    ours, theirs = connect_pair(echo)
    ours._serve = echo
    assert ours.call_json("a", timeout=5)[0]["echo"] == {"op": "a"}
    assert theirs.call_json("b", timeout=5)[0]["echo"] == {"op": "b"}


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
def test_a_body_of_any_size_crosses_and_comes_back(connect_pair, size):
    ours, _ = connect_pair(echo)
    body, fds = ours.call_json("store", {"text": "é" * size}, timeout=10)
    assert body["echo"] == {"op": "store", "text": "é" * size}
    assert fds == []


@pytest.mark.parametrize("size", [10, 70_000])
def test_descriptors_cross_in_order_beside_a_body_of_any_size(connect_pair, size):
    ours, _ = connect_pair(echo)
    sent = [temporary(b"%d" % index) for index in range(5)]
    _, back = ours.call_json("pass", {"text": "x" * size}, sent, timeout=5)
    assert [content(fd) for fd in back] == [b"0", b"1", b"2", b"3", b"4"]
    assert not any(os.get_inheritable(fd) for fd in back)
    for fd in (*sent, *back):
        os.close(fd)


def test_the_largest_number_of_descriptors_crosses(connect_pair):
    ours, _ = connect_pair(lambda request: request.reply(b"%d" % len(request.frame.fds)))
    fd = temporary()
    reply = ours.call(FrameType.IMPORT, b"", [fd] * MAX_DESCRIPTORS, timeout=5)
    os.close(fd)
    assert reply.payload == b"253"


def test_descriptors_nobody_takes_are_closed(connect_pair):
    def answer_with_one(request: Request) -> None:
        fd = temporary()
        request.reply(b"", [fd])
        os.close(fd)

    ours, _ = connect_pair(answer_with_one)
    fd = temporary()
    for _ in range(20):
        ours.call(FrameType.IMPORT, b"", [fd], timeout=5)
    os.close(fd)


def test_a_long_request_does_not_block_a_short_one(connect_pair):
    release = threading.Event()

    def serve(request: Request) -> None:
        if request.json()["op"] == "long":
            release.wait(10)
        request.reply_json()

    ours, _ = connect_pair(serve)
    long = threading.Thread(target=ours.call_json, args=("long",), kwargs={"timeout": 10})
    long.start()
    assert ours.call_json("short", timeout=5)[0] == {"ok": True}
    assert long.is_alive()
    release.set()
    long.join(5)
    assert not long.is_alive()


def test_inline_requests_are_served_in_order_on_the_reader_thread(raw_pair):
    seen = []

    def serve(request: Request) -> None:
        seen.append((request.frame.request, threading.current_thread().name))

    ours, _ = raw_pair(serve, serve_inline={FrameType.HELLO})
    for number in range(50):
        ours.send(encode(Frame(FrameType.HELLO, number)))
    assert eventually(lambda: len(seen) == 50)
    assert seen == [(number, "gcr-read-theirs") for number in range(50)]


def test_progress_arrives_in_order_on_the_caller_s_thread(connect_pair):
    def serve(request: Request) -> None:
        for step in range(5):
            request.progress({"step": step})
        request.reply_json()

    ours, _ = connect_pair(serve)
    seen = []
    ours.call_json("work", timeout=5, on_progress=lambda body: seen.append((body["step"], threading.current_thread())))
    assert seen == [(step, threading.current_thread()) for step in range(5)]


def test_progress_nobody_asked_for_is_dropped(connect_pair):
    ours, _ = connect_pair(lambda request: [request.progress({"n": 1}), request.reply_json({"done": 1})])
    assert ours.call_json("work", timeout=5)[0] == {"ok": True, "done": 1}


def test_a_notice_arrives_and_is_not_answered(connect_pair):
    seen = []
    ours, _ = connect_pair(lambda request: [seen.append(request.json()), request.reply_json()])
    ours.notice("exited", {"pid": 5})
    assert eventually(lambda: seen == [{"op": "exited", "pid": 5}])


@pytest.mark.parametrize(
    "error",
    [
        NoRoom("full", missing=12, state="running", hint="trim"),
        UnsupportedState("nccl", state="running"),
        RolledBack("failed", hint="again"),
        AgentError("driver said no", agent_code=6),
        GcrError("bug"),
    ],
    ids=lambda error: error.code,
)
def test_an_error_crosses_with_all_that_it_says(connect_pair, error):
    ours, _ = connect_pair(raising(error))
    with pytest.raises(GcrError) as caught:
        ours.call_json("fail", timeout=5)
    came = caught.value
    assert type(came) is type(error)
    for fact in ("code", "exit", "message", "state", "hint"):
        assert getattr(came, fact) == getattr(error, fact)
    assert getattr(came, "missing", None) == getattr(error, "missing", None)


def test_an_error_only_a_newer_peer_knows_keeps_code_and_exit(connect_pair):
    failure = {"ok": False, "error": {"code": "tomorrow", "exit": 3, "message": "m", "state": None, "hint": ""}}
    ours, _ = connect_pair(lambda request: request._answer_json(failure, ()))
    with pytest.raises(Refused) as caught:
        ours.call_json("fail", timeout=5)
    assert (caught.value.code, caught.value.exit, Refused.code) == ("tomorrow", 3, "refused")


def test_a_server_s_bug_is_an_internal_error_to_the_caller_and_a_traceback_in_the_log(connect_pair, caplog):
    ours, _ = connect_pair(raising(ZeroDivisionError("secret detail")))
    with pytest.raises(GcrError) as caught:
        ours.call_json("fail", timeout=5)
    assert caught.value.exit == 1
    assert "secret" not in caught.value.message
    assert "secret detail" in caplog.text


def test_an_error_frame_carries_code_vendor_error_and_stuck_streams(connect_pair):
    record = ErrorRecord(ErrorCode.STUCK, vendor_error=-7, message="two streams")
    streams = (StuckRecord(0x1000, 0x2000, 0, 1), StuckRecord(0, 0x2000, 1, 0))
    ours, _ = connect_pair(lambda request: request.fail(StuckError(record, streams)))
    with pytest.raises(AgentError) as caught:
        ours.call(FrameType.QUIESCE, timeout=5)
    error = caught.value
    assert (error.agent_code, error.vendor_error, error.message) == (ErrorCode.STUCK, -7, "two streams")
    assert error.stuck == streams


def test_a_binary_request_is_refused_with_a_typed_error_frame_and_a_long_message_is_cut(connect_pair):
    ours, _ = connect_pair(raising(NotOurs("ü" * 100)))
    with pytest.raises(AgentError) as caught:
        ours.call(FrameType.HELLO, timeout=5)
    assert caught.value.agent_code is ErrorCode.NOT_PERMITTED
    assert caught.value.message == "ü" * 56


def test_a_lack_of_descriptors_keeps_its_name_in_an_error_frame(connect_pair):
    def serve(_request: Request) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    ours, _ = connect_pair(serve)
    with pytest.raises(AgentError) as caught:
        ours.call(FrameType.HELLO, timeout=5)
    assert caught.value.agent_code is ErrorCode.NO_DESCRIPTORS
    with pytest.raises(NoDescriptors, match="Too many open files"):
        ours.call_json("any", timeout=5)


def test_a_request_nobody_serves_is_refused(connect_pair):
    ours, _ = connect_pair(None)
    with pytest.raises(Refused):
        ours.call_json("any", timeout=5)


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


def test_progress_that_nobody_reads_holds_nobody_up(raw_pair):
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


def test_who_hears_that_the_peer_is_gone_finds_the_channel_closed(monkeypatch):
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


def test_a_reader_that_is_held_up_holds_up_nobody_who_hears_that_the_peer_is_gone(monkeypatch):
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


def test_the_peer_is_who_the_kernel_says(raw_pair):
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
