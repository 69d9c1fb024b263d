"""A connection too many, or half open, harms no other: the daemon goes on."""

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.api.requests import PingRequest
from gcr.config import Config
from gcr.daemon import server as module
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.door import MOST_STRANGERS, Door
from gcr.daemon.jobs import Job, Jobs, Program
from gcr.daemon.server import Server
from gcr.engine.node import World
from gcr.errors import PeerGone, UsageError
from gcr.job.journal import Journal
from gcr.protocol.channel import Channel
from gcr.protocol.frames import AgentError
from gcr.protocol.seqpacket import connect, listen
from gcr.protocol.wire import Frame, FrameType, HelloRecord, Role
from gcr.rendezvous.presence import Presence

HELLO = HelloRecord(role=Role.CLIENT).pack()
TRIES = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A daemon that serves at `s`."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    with listen(folder / "s") as listener:
        made = Server(listener, coordinator, frozenset({os.getuid()}), Presence(tmp_path))
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        alive = thread.is_alive()
        made.stop()
        thread.join(10)
        assert alive and not thread.is_alive()


@pytest.fixture
def come(server: Server) -> Iterator[Callable[[], Channel]]:
    made: list[Channel] = []

    def connected() -> Channel:
        made.append(Channel(connect(Path(server.listener.getsockname()), 5)).start())
        return made[-1]

    yield connected
    for channel in made:
        channel.close()


def served(channel: Channel) -> bool:
    return bool(channel.call(FrameType.HELLO, HELLO, timeout=10).payload)


def ping(channel: Channel) -> Future[Any]:
    """Asks on another thread."""
    pool = ThreadPoolExecutor(1)
    found = pool.submit(channel.call_json, PingRequest.op, {}, timeout=10, type=FrameType.COMMAND)
    pool.shutdown(wait=False)
    return found


@contextmanager
def exhausted(spare: int = 0) -> Iterator[Callable[[], None]]:
    """Within the block this process gets `spare` descriptors and no more.

    Yields a call that takes those that threads of this process, of an earlier test say, have closed since.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        take_all(taken)
        for _ in range(spare):
            os.close(taken.pop())
        yield lambda: take_all(taken)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def take_all(taken: list[int]) -> None:
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))


def test_a_command_may_come_right_behind_its_greeting(come: Callable[[], Channel]) -> None:
    for _ in range(20):
        early = come()
        early.send(Frame(FrameType.HELLO, 1 << 20, HELLO), 10)
        assert ping(early).result(10)[0]["pid"] == os.getpid()


def test_a_command_without_a_greeting_is_refused(come: Callable[[], Channel]) -> None:
    early = come()
    with pytest.raises(UsageError, match="must be HELLO"):
        ping(early).result(10)
    assert served(early)


def test_one_connection_too_many_for_the_descriptors_is_refused(come: Callable[[], Channel]) -> None:
    first = come()
    assert served(first)
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(TRIES)]
    with exhausted() as take_more:
        refused = any(is_refused(each, cast("Any", first)._sock.getpeername(), take_more) for each in waiting)
    for each in waiting:
        each.close()
    assert refused
    assert served(come())


def is_refused(waiting: socket.socket, address: str, take_more: Callable[[], None]) -> bool:
    """Returns False where the connection was served, by a descriptor that a thread had just closed."""
    take_more()
    waiting.settimeout(10 / TRIES)
    waiting.connect(address)
    try:
        return waiting.recv(1) == b""
    except TimeoutError:
        return False


def test_a_peer_that_comes_once_there_are_descriptors_again_is_served(tmp_path: Path) -> None:
    came: SimpleQueue[socket.socket] = SimpleQueue()
    visitor: Any = SimpleNamespace(is_stranger=False, greeted=True)

    def serve(sock: socket.socket) -> Any:
        came.put(sock)
        return visitor

    with listen(tmp_path / "s") as listener:
        thread = threading.Thread(target=Door(serve).take, args=(listener,))
        holes = [os.dup(0), os.dup(0)]  # so that one more descriptor is below the limit
        os.close(holes.pop(0))
        with exhausted(spare=1):  # for the reserve
            thread.start()
            time.sleep(0.2)
        peer = connect(tmp_path / "s", 5)
        thread.join(10)
        assert not thread.is_alive()
        came.get(timeout=1).close()
        peer.close()
        os.close(holes[0])


def test_one_connection_too_many_for_the_threads_is_refused(
    come: Callable[[], Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Channel):
        def start(self) -> Channel:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(module, "Channel", Full)
        refused = come()
        assert refused.closed.wait(10)
    assert served(come())


def test_a_channel_that_finds_no_thread_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def full(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with theirs:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            channel = Channel(ours)
            with pytest.raises(RuntimeError):
                channel.start()
        assert channel.closed.is_set() and theirs.recv(1) == b""
        with pytest.raises(PeerGone):
            channel.call(FrameType.HELLO, HELLO, timeout=1)


def test_a_silent_connection_is_closed(server: Server, come: Callable[[], Channel]) -> None:
    silent, speaking = come(), come()
    assert served(speaking)
    server.door.end_half_open(60)
    assert not silent.closed.wait(0.1)
    server.door.end_half_open(0)
    assert silent.closed.wait(10)
    assert speaking.call_json("ping", timeout=10, type=FrameType.COMMAND)[0]["ok"]


def test_users_that_are_not_served_take_a_few_connections_at_most(server: Server, come: Callable[[], Channel]) -> None:
    server.allowed = frozenset()
    for _ in range(MOST_STRANGERS):
        with pytest.raises(AgentError, match="may not use this daemon"):
            served(come())
    assert come().closed.wait(10)
    server.door.end_half_open(0)
    with pytest.raises(AgentError):
        served(come())


def test_a_job_that_cannot_be_looked_after_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs()
    for name in ("bad", "good"):
        jobs.add(Job(name, name, World("nvidia"), program=Program(started=float(name == "good"))))
    arrivals = Arrivals(
        cast("Any", SimpleNamespace(jobs=jobs, config=SimpleNamespace(prepare_arena=False, job_log_bytes=1 << 20)))
    )
    seen: list[str] = []

    def drop(job: Job) -> None:
        seen.append(job.name)
        if job.name == "bad":
            raise ValueError("its name is no file's")

    monkeypatch.setattr(arrivals, "_drop_if_over", drop)
    arrivals.look_after()
    assert seen == ["bad", "good"]
