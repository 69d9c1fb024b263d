"""Channels over a real socket pair: calls, progress, errors and descriptors."""

import errno
import os
import threading

import pytest
from channels import content, echo, eventually, raising, temporary

from gcr.errors import (
    GcrError,
    NoDescriptors,
    NoRoom,
    NotOurs,
    Refused,
    RolledBack,
    UnsupportedState,
)
from gcr.protocol.agentwire import CountRecord, TransactionRecord
from gcr.protocol.channel import AgentError, Request
from gcr.protocol.wire import (
    MAX_DESCRIPTORS,
    REPLY,
    ErrorCode,
    ErrorRecord,
    Frame,
    FrameType,
    StuckError,
    StuckRecord,
    encode,
)

pytestmark = pytest.mark.timeout(30)


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


def test_descriptors_that_are_not_taken_are_closed(connect_pair):
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

    ours, _ = raw_pair(serve, inline=lambda frame: frame.type == FrameType.HELLO)
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


def test_progress_that_was_not_asked_for_is_dropped(connect_pair):
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


def test_an_answer_that_cannot_be_sent_is_an_error_to_the_caller_at_once(connect_pair, caplog):
    ours, _ = connect_pair(lambda request: request.reply_json({}, [0] * (MAX_DESCRIPTORS + 1)))
    with pytest.raises(GcrError, match="internal error"):
        ours.call_json("many", timeout=5)
    assert f"{MAX_DESCRIPTORS + 1} descriptors is too large" in caplog.text
    ours, _ = connect_pair(lambda request: request.reply(bytes(1 << 20)))
    with pytest.raises(AgentError, match="internal error"):
        ours.call(FrameType.STATUS, timeout=5)


def test_a_request_that_is_not_served_is_refused(connect_pair):
    ours, _ = connect_pair(None)
    with pytest.raises(Refused):
        ours.call_json("any", timeout=5)
