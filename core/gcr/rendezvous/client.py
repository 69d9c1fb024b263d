"""A client of the daemon: one connection, one command at a time a thread, every wait with a deadline.

Commands: `ping`, `ps`, `checkpoint`, `restore`, `save_spans`, `status`, `stop`, `recover`. A target is a job's name or,
as an integer, a pid. Closing the connection cancels what it asked for: the daemon rolls back.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gcr import runtime
from gcr.api.answers import Answer
from gcr.api.events import Listener, ProgressEvent
from gcr.api.listings import JobInfo, JobList
from gcr.api.requests import PsRequest, Request
from gcr.errors import DaemonUnavailable, GcrError, NotAllKnown, PeerGone, WrongVersion
from gcr.protocol.channel import Channel
from gcr.protocol.frames import AgentError, refused_greeting
from gcr.protocol.seqpacket import close_all
from gcr.protocol.trust import connect_to_daemon
from gcr.protocol.wire import FrameType, HelloRecord, Role, WelcomeRecord
from gcr.version import __version__

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Answer)
Progress = Callable[[dict[str, Any]], None]

CONNECT_TIMEOUT = 5.0  # seconds for a running daemon to greet
START_TIMEOUT = 20.0  # seconds for one that must be started
ANSWER_TIMEOUT = 15.0  # seconds for a command that only looks
_ENDING_S = 2.0  # seconds for the kernel to end a daemon that was killed
_RETRY_S = 0.02
GRACE = 30.0  # seconds beyond a command's own deadline, for the daemon to undo and say so


class Client:
    """Use as a context manager, or close."""

    def __init__(self, channel: Channel, welcome: WelcomeRecord) -> None:
        self._channel = channel
        self.daemon_pid = welcome.daemon_pid
        self.daemon_version = welcome.daemon_version

    @classmethod
    def connect(cls, autostart: bool = True, timeout: float = START_TIMEOUT, any_version: bool = False) -> Self:
        """Connect to this user's daemon, starting it if none runs and `autostart`.

        A daemon of an earlier version is asked to hand over to one of this version, if `autostart`.
        Raises DaemonUnavailable, UnsafeRuntime, and unless `any_version` WrongVersion for a daemon of another one.
        """
        client = cls._greeted_at_last(autostart, timeout)
        if any_version or client.daemon_version == __version__:
            return client
        from gcr.rendezvous import succession  # only after an upgrade

        with client:
            if not autostart:
                raise succession.refusal(client)
            succession.take_over(client)
        client = cls._greeted_at_last(autostart, timeout)
        if client.daemon_version != __version__:
            with client:
                raise succession.refusal(client)
        return client

    @classmethod
    def at(cls, path: Path, timeout: float = CONNECT_TIMEOUT) -> Self:
        """Connects to the daemon of any version that listens at this path, and starts none.

        Raises DaemonUnavailable, UnsafeRuntime, PeerGone, DeadlinePassed.
        """
        return cls._greeted(Channel(connect_to_daemon(path, timeout), name=str(path)).start(), timeout, path)

    @classmethod
    def _greeted_at_last(cls, autostart: bool, timeout: float) -> Self:
        """A daemon that was killed may take one more connection while the kernel ends it, and answers nothing."""
        end = time.monotonic() + _ENDING_S
        while True:
            try:
                return cls._greeted(_reach(autostart, timeout), timeout)
            except PeerGone:
                if time.monotonic() > end:
                    raise
                time.sleep(_RETRY_S)

    @classmethod
    def _greeted(cls, channel: Channel, timeout: float, path: Path | None = None) -> Self:
        try:
            client = cls(channel, _greet(channel, min(timeout, CONNECT_TIMEOUT)))
            log.info("gcrd %s, pid %d, at %s", client.daemon_version, client.daemon_pid, path or runtime.socket_path())
            return client
        except BaseException:
            channel.close()
            raise

    def request(
        self,
        command: str,
        body: Mapping[str, Any] | None = None,
        fds: Sequence[int] = (),
        *,
        timeout: float = ANSWER_TIMEOUT,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Ask and wait. Raises what the daemon raised, DeadlinePassed after `timeout` seconds, PeerGone.

        `fds`: the key of an encrypted store (gcr.image.crypto.key), where `encrypted` in the body says so.
        """
        began = time.monotonic()
        log.debug("%s: %s", command, _without_secrets(body or {}))
        answer, _ = self._channel.call_json(
            command, body, fds, timeout=timeout, on_progress=on_progress, type=FrameType.COMMAND
        )
        log.info("%s: answered after %.3f s", command, time.monotonic() - began)
        return {key: value for key, value in answer.items() if key != "ok"}

    def ask(
        self,
        request: Request,
        kind: type[A],
        key: Sequence[int] = (),
        *,
        timeout: float = ANSWER_TIMEOUT,
        on_event: Listener | None = None,
    ) -> A:
        """Returns the answer, which is a `kind`. Raises as `request`. `key`: of an encrypted store."""

        def told(body: dict[str, Any]) -> None:
            if on_event:
                on_event(ProgressEvent.from_json(body))

        on_progress = told if on_event else None
        return kind.from_json(
            self.request(request.op, request.to_json(), key, timeout=timeout, on_progress=on_progress)
        )

    def given(self, request: Request, kind: type[A], *, timeout: float, on_event: Listener) -> tuple[A, Sequence[int]]:
        """Returns the answer, and the descriptors that came with it, the caller's. Raises as `request`."""
        answer, fds = self._channel.call_json(
            request.op,
            request.to_json(),
            timeout=timeout,
            on_progress=lambda body: on_event(ProgressEvent.from_json(body)),
            type=FrameType.COMMAND,
        )
        try:
            return kind.from_json(answer), fds
        except BaseException:
            close_all(fds)
            raise

    def jobs(self, timeout: float = ANSWER_TIMEOUT) -> JobList:
        """Returns the answer of `ps`. Raises as `request`."""
        return self.ask(PsRequest(), JobList, timeout=timeout)

    @property
    def is_closed(self) -> bool:
        """Returns whether the connection has ended."""
        return self._channel.closed.is_set()

    def wait_closed(self, timeout: float) -> bool:
        """Wait until the daemon ended the connection, as one that stops does; False if it did not."""
        return self._channel.closed.wait(timeout)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _without_secrets(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a request's body as a log may have it: a step of a migration may name a token."""
    step = body.get("step")
    if not isinstance(step, Mapping):
        return body
    return {**body, "step": {name: value for name, value in step.items() if name != "exchange"}}


def all_jobs(warn: Callable[[str], object]) -> tuple[JobInfo, ...]:
    """Returns the jobs of this user. Starts no daemon where nothing says that there is a job.

    warn: is told where some jobs are known, and others are still awaited

    Raises NotAllKnown where none is known yet, rather than say that there is none; DaemonUnavailable.
    """
    if not any_trace():
        return ()
    with Client.connect() as client:
        answer = client.jobs()
    if answer.awaited:
        missing = NotAllKnown.of(answer.awaited)
        if not answer.jobs:
            raise missing
        warn(missing.message)
    return answer.jobs


def any_trace() -> bool:
    """Returns True if there may be jobs: a daemon, or processes and decisions that one has left.

    A daemon that died leaves its socket. One that stopped leaves word of the processes that are under it.
    Raises UnsafeRuntime, OSError.
    """
    path = runtime.socket_path()
    if path.exists():
        return True
    from gcr.rendezvous.traces import left_behind  # the usual case needs none of it

    return left_behind(path)


def settle(target: str | int, timeout: float = GRACE) -> JobInfo | None:
    """Waits until the job of a cancelled command stands still and no command has its turn at it.

    Returns its row of `ps`, or None if it cannot be told.
    """
    end, job = time.monotonic() + timeout, None
    while time.monotonic() < end:
        try:
            with Client.connect(autostart=False, timeout=CONNECT_TIMEOUT) as client:
                job = next((job for job in client.jobs().jobs if job.is_meant(target)), None)
        except GcrError:
            return None
        if job is None or (job.state in _STILL and not job.changing):
            return job
        time.sleep(0.05)
    return job if job and job.state in _STILL else None  # another command has its turn at it by now


_STILL = frozenset({"running", "suspended", "data_suspended", "exited", "lost"})


def _reach(autostart: bool, timeout: float) -> Channel:
    path = runtime.socket_path()
    try:
        return Channel(connect_to_daemon(path, min(timeout, CONNECT_TIMEOUT)), name="gcrd").start()
    except DaemonUnavailable:
        if not autostart:
            raise
    from gcr.rendezvous.launch import launch  # subprocess is not needed while a daemon runs

    log.debug("no daemon at %s: starting one", path)
    launch()
    return Channel(connect_to_daemon(path, CONNECT_TIMEOUT), name="gcrd").start()


def _greet(channel: Channel, timeout: float) -> WelcomeRecord:
    hello = HelloRecord(role=Role.CLIENT, version=__version__)
    try:
        return WelcomeRecord.unpack(channel.call(FrameType.HELLO, hello.pack(), timeout=timeout).payload)
    except AgentError as refusal:
        error = refused_greeting(refusal)
        if isinstance(error, WrongVersion):
            error.hint = f"restore what is suspended with the gcr that started it, then kill {channel.peer.pid}"
        raise error from refusal
