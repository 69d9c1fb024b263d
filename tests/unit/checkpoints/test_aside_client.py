"""A program's end of a save of its device memory, with a daemon that says nothing."""

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gcr.checkpoints.aside import Aside, Span
from gcr.errors import DaemonUnavailable, DeadlinePassed, GcrError, NoRoom, NotOurs, WrongVersion
from gcr.memory.memfiles import filled_memfd, hold_still
from gcr.protocol.frames import error_payload
from gcr.protocol.jsonbody import error_to_json
from gcr.protocol.record import BadFrame
from gcr.protocol.seqpacket import listen
from gcr.protocol.wire import ERROR, REPLY, VERSION, Frame, FrameType, WelcomeRecord, decode, encode
from gcr.version import __version__

LONG = 20.0
REFUSED, NO_ROOM = error_payload(NotOurs("no")), error_to_json(NoRoom("full", missing=1))
PAGE = 1 << 21
ANSWER = {"sizes": [PAGE], "in_place_bytes": 3, "prepared_s": 0.0, "aside_s": 0.0, "safe_s": 0.0, "drained_s": 0.0}


def welcome(version: str) -> bytes:
    return WelcomeRecord(VERSION, 0, os.getpid(), 1, version).pack()


@contextmanager
def memory(begin: bytes) -> Iterator[int]:
    """Yields a segment's descriptor that keeps it still, as the daemon gives it."""
    fd = filled_memfd(PAGE)
    try:
        os.pwrite(fd, begin, 0)
        held = hold_still(fd)
    finally:
        os.close(fd)
    try:
        yield held
    finally:
        os.close(held)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("GCR_TOKEN", "t")
    return tmp_path / "s"


def sent(listener: socket.socket) -> list[Frame]:
    """Returns what the other end sends until it leaves."""
    taken, _ = listener.accept()
    with taken:
        taken.settimeout(LONG)
        return [decode(packet, []) for packet in iter(lambda: taken.recv(1000), b"")]


def test_a_save_is_prepared_without_a_wait_for_the_daemon(place: Path) -> None:
    with listen(place) as listener:
        save = Aside(0.3)
        save.begin([Span(1 << 20, 5)], lambda: None)
        with pytest.raises(DeadlinePassed):
            save.wait_for_copy()
        assert [frame.type for frame in sent(listener)] == [FrameType.HELLO, FrameType.COMMAND, FrameType.COMMAND]
    assert isinstance(save.arrived.exception(LONG), GcrError)


def test_a_save_that_is_given_up_before_it_is_greeted_leaves_no_connection(place: Path) -> None:
    with listen(place) as listener:
        save = Aside(1.0)
        save.give_up()
        assert len(sent(listener)) == 2
    assert isinstance(save.safe.exception(LONG), GcrError)


@pytest.mark.usefixtures("place")
def test_a_save_without_a_daemon_is_refused() -> None:
    with pytest.raises(DaemonUnavailable):
        Aside(LONG)


def reply(request: int, body: Mapping[str, Any], fds: Sequence[int] = ()) -> bytes:
    return encode(Frame(REPLY | FrameType.COMMAND, request, json.dumps(body).encode(), fds))


def test_a_save_of_which_the_events_were_lost_has_them_from_its_answer(place: Path) -> None:
    with listen(place) as listener:
        save = Aside(LONG)
        taken, _ = listener.accept()
        with taken:
            hello, asked = (decode(taken.recv(1000), []).request for _ in range(2))
            taken.send(encode(Frame(REPLY | FrameType.HELLO, hello, welcome(__version__), ())))
            save.begin([Span(1 << 20, 5)], lambda: None)
            named = decode(taken.recv(1000), []).request
            taken.send(reply(named, {"ok": True, "pid": 1, "version": ""}))
            with memory(b"12345") as fd:
                socket.send_fds(taken, [reply(asked, {"ok": True, **ANSWER}, [fd])], [fd])
            save.wait_for_copy()
            assert (save.in_place_bytes, save.safe.done(), save.arrived.result(LONG)) == (3, True, None)
            assert bytes(save.memory(0)) == b"12345"


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([lambda hello, _: encode(Frame(REPLY | FrameType.HELLO, hello, welcome("0.1"), ()))], WrongVersion),
        ([lambda hello, _: encode(Frame(ERROR, hello, REFUSED, ()))], NotOurs),
        ([lambda _, asked: reply(asked, {"ok": False, "error": NO_ROOM})], NoRoom),
        ([lambda *_: b"no frame"], BadFrame),
    ],
)
def test_an_error_of_the_daemon_ends_the_save(place: Path, frames: Sequence[Any], error: type[GcrError]) -> None:
    with listen(place) as listener:
        save = Aside(LONG)
        taken, _ = listener.accept()
        with taken:
            numbers = [decode(taken.recv(1000), []).request for _ in range(2)]
            for frame in frames:
                taken.send(frame(*numbers))
            with pytest.raises(error):
                save.wait_for_copy()
            assert not taken.recv(1000), "it has left"
    assert [type(each.exception(LONG)) for each in (save.safe, save.arrived)] == [error, error]
