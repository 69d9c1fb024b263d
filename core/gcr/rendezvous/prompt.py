"""A command that the daemon gets before it has greeted, for a program that stands still meanwhile.

Connecting and sending wait for nothing. The program goes on with what it has to find, and reads the daemon's frames
when it needs them. `Client` waits for the greeting first, and has a thread that reads.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from gcr import runtime
from gcr.api.answers import Answer
from gcr.api.events import ProgressEvent
from gcr.api.requests import Request
from gcr.protocol import jsonbody
from gcr.protocol.frames import Received, agent_error, refused_greeting
from gcr.protocol.seqpacket import close_all
from gcr.protocol.talk import Talk
from gcr.protocol.trust import connect_to_daemon
from gcr.protocol.wire import ERROR, FrameType, HelloRecord, Role, WelcomeRecord
from gcr.version import __version__

A = TypeVar("A", bound=Answer)
Given = tuple[A, Sequence[int]]  # an answer, and the descriptors that came with it


class Prompt(Generic[A]):
    """One command. `add`, `next`, `end` and `close` may be called by different threads; one at a time reads."""

    def __init__(self, request: Request, kind: type[A], timeout: float) -> None:
        """Sends the command to this user's daemon, of which the answer will be a `kind`.

        timeout: seconds for the daemon to take the connection

        Raises DaemonUnavailable, DeadlinePassed, UnsafeRuntime, PeerGone.
        """
        self._kind = kind
        self._talk = Talk(connect_to_daemon(runtime.socket_path(), timeout), "gcrd")
        try:
            self._hello = self._talk.send(FrameType.HELLO, HelloRecord(role=Role.CLIENT, version=__version__).pack())
            self._asked = self._talk.ask(request.op, request.to_json())
        except BaseException:
            self._talk.close()
            raise

    def add(self, request: Request) -> None:
        """Sends one more command. If it fails, `next` raises the error. Raises PeerGone, NotRead."""
        self._talk.ask(request.op, request.to_json())

    def next(self, end: float) -> ProgressEvent | Given[A]:
        """Returns the next event of the command, or its answer with descriptors, which are the caller's.

        end: by time.monotonic()

        Raises what the daemon raised; WrongVersion; DeadlinePassed, PeerGone, BadFrame, NoDescriptors.
        """
        while True:
            frame = self._talk.next(end)
            if frame.type == ERROR:
                refused = agent_error(frame)
                raise refused_greeting(refused) if frame.request == self._hello else refused
            if frame.type == FrameType.PROGRESS:
                return ProgressEvent.from_json(jsonbody.load(frame.payload, []))
            if frame.request == self._hello:
                _check_version(WelcomeRecord.unpack(frame.payload))  # of the greeting
            elif (found := self._answer(frame)) is not None:
                return found

    def _answer(self, frame: Received) -> Given[A] | None:
        """Returns None for the answer to what was added."""
        fds = frame.take_fds()
        try:
            body = jsonbody.answer(frame.payload, fds)
            if frame.request == self._asked:
                return self._kind.from_json(body), fds
        except BaseException:
            close_all(fds)
            raise
        close_all(fds)
        return None

    def end(self) -> None:
        """Gives the command up: the daemon takes back what it has done. Idempotent."""
        self._talk.end()

    def close(self) -> None:
        """Gives it up, and closes the connection once no thread reads. Idempotent."""
        self._talk.close()


def _check_version(welcome: WelcomeRecord) -> None:
    if welcome.daemon_version != __version__:
        from gcr.rendezvous.succession import refusal  # only after an upgrade

        raise refusal(welcome)
