import errno
import os
import socket
import stat
import time

import pytest

from gcr.errors import DaemonUnavailable, DeadlinePassed, UnsafeRuntime
from gcr.protocol.channel import Channel, connect, listen
from gcr.protocol.wire import FrameType


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "gcr"
    path.mkdir(mode=0o700)
    return path


def test_a_call_over_a_listening_socket(folder):
    with listen(folder / "s") as server:
        client = Channel(connect(folder / "s", 5)).start()
        served, _ = server.accept()
        other = Channel(served, lambda request: request.reply(b"hello")).start()
        assert client.call(FrameType.HELLO, timeout=5).payload == b"hello"
        client.close()
        assert other.closed.wait(5)
        assert client.closed.wait(5)


def test_the_socket_is_ours_alone_whatever_the_umask(folder):
    old = os.umask(0)
    try:
        with listen(folder / "s"):
            assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    finally:
        os.umask(old)


@pytest.mark.parametrize("shared", [False, True])
def test_no_socket_is_made_where_others_may_write(folder, shared):
    folder.chmod(0o777)
    with pytest.raises(UnsafeRuntime):
        listen(folder / "s", shared)


def test_a_shared_socket_is_open_to_all_where_others_may_enter_whatever_the_umask(folder):
    folder.chmod(0o711)
    with pytest.raises(UnsafeRuntime, match="not 0700"):
        listen(folder / "s")
    old = os.umask(0o077)
    try:
        with listen(folder / "s", shared=True):
            assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o666
    finally:
        os.umask(old)


def test_a_path_longer_than_an_address_serves_as_well(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir(mode=0o700)
    with listen(deep / "socket"):
        connect(deep / "socket", 5).close()
    assert (deep / "socket").is_socket()


def test_a_socket_without_a_listener_is_replaced(folder):
    listen(folder / "s").close()
    with listen(folder / "s"):
        connect(folder / "s", 5).close()


def test_a_process_that_listens_is_not_replaced(folder):
    with listen(folder / "s"):
        with pytest.raises(OSError) as caught:
            listen(folder / "s")
        connect(folder / "s", 5).close()
    assert caught.value.errno == errno.EADDRINUSE


def test_a_file_in_the_way_stays(folder):
    (folder / "s").write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        listen(folder / "s")
    assert (folder / "s").read_text() == "precious"


@pytest.mark.parametrize("leftover", [False, True])
def test_a_missing_listener_is_said_at_once(folder, leftover):
    if leftover:
        listen(folder / "s").close()
    began = time.monotonic()
    with pytest.raises(DaemonUnavailable):
        connect(folder / "s", 60)
    assert time.monotonic() - began < 10


def test_a_full_backlog_ends_at_the_deadline(folder):
    with listen(folder / "s") as server:
        server.listen(0)
        waiting = connect(folder / "s", 5)
        with pytest.raises(DeadlinePassed):
            connect(folder / "s", 0.1)
        waiting.close()


def test_a_stream_socket_is_not_taken_for_ours(folder):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind(str(folder / "s"))
        stream.listen(1)
        with pytest.raises(DaemonUnavailable):
            connect(folder / "s", 1)
