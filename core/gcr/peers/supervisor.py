"""The supervisor of a job, as the daemon sees it. A method is one JSON call.

It raises what the supervisor raised, PeerGone or DeadlinePassed.
"""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from gcr.errors import DeadlinePassed
from gcr.peers.waiting import BRIEF, CALL_TIMEOUT
from gcr.processes import is_stopped
from gcr.protocol.batches import batches
from gcr.protocol.channel import Channel
from gcr.protocol.operations.operation import A, Nothing, Operation, ask
from gcr.protocol.operations.supervisor import (
    Drop,
    Forget,
    Ids,
    Leave,
    Note,
    Noted,
    Park,
    Put,
    Stage,
    Take,
    Unpark,
    Unstage,
    UnstageAll,
)
from gcr.protocol.seqpacket import close_all

STOPPED_S = 10.0  # a supervisor that was stopped for so long is not waited for


class SupervisorPeer(Struct):
    """A job's supervisor; offers the Keeper interface of its escrow."""

    channel: Channel
    pid: int

    def put(self, pid: int, ids: Sequence[int], fds: Sequence[int]) -> None:
        self._call(Put(pid, tuple(ids)), fds)

    def drop(self, pid: int, ids: Sequence[int] | None = None) -> None:
        self._call(Drop(pid, None if ids is None else tuple(ids)))

    def ids(self, pid: int) -> list[int]:
        return [*self._asked(Ids(pid))[0].ids]

    def take(self, pid: int, ids: Sequence[int]) -> list[int]:
        return self._asked(Take(pid, tuple(ids)))[1]

    def stage(self, pid: int, fds: Sequence[int], offset: int = 0) -> None:
        for first, part in batches(fds):
            self._call(Stage(pid, offset + first), part)

    def unstage(self, pid: int, offset: int, limit: int) -> list[int]:
        return self._asked(Unstage(pid, offset, limit))[1]

    def unstage_all(self, pid: int) -> None:
        self._call(UnstageAll(pid))

    def forget(self, pid: int) -> None:
        self._call(Forget(pid))

    def note(self, text: str) -> None:
        self._call(Note(text))

    def noted(self) -> str:
        return self._asked(Noted())[0].text

    def park(self, store: str, image: str, stood_s: float) -> None:
        """Has the supervisor end its program, which this image has, and stay. `stood_s`: as of `Park`."""
        self._call(Park(store, image, stood_s))

    def leave(self) -> None:
        """Has the supervisor close all that CRIU could not save, and stay away while its mark is there.

        The connection ends once nothing else is open. Raises WrongState without a mark.
        """
        self._call(Leave())

    def unpark(self, seconds: float) -> None:
        """Has the supervisor make the processes again, within so many seconds. Raises NotRestored and others.

        A supervisor that is stopped meanwhile for STOPPED_S is not waited for. It goes on once it is continued.
        """
        close_all(self._asked(Unpark(), timeout=seconds, on_silence=self._refuse_stopped())[1])

    def _call(self, operation: Operation[Nothing], fds: Sequence[int] = ()) -> None:
        close_all(self._asked(operation, fds)[1])

    def _asked(
        self,
        operation: Operation[A],
        fds: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
        on_silence: Callable[[], object] | None = None,
    ) -> tuple[A, list[int]]:
        """Returns the answer and its descriptors. Raises DeadlinePassed or NotRead, which names the supervisor."""
        brief = self.channel.silent or is_stopped(self.pid)
        try:
            return ask(self.channel, operation, fds, timeout=BRIEF if brief else timeout, on_silence=on_silence)
        except DeadlinePassed as late:
            if not is_stopped(self.pid):
                raise type(late)(f"the job's supervisor, process {self.pid}, does not answer") from late
            text = f"the job's supervisor, process {self.pid}, is stopped"
            raise type(late)(text, hint=f"kill -CONT {self.pid}; then try again") from late

    def _refuse_stopped(self) -> Callable[[], None]:
        """Returns what raises DeadlinePassed once the supervisor was stopped for STOPPED_S, asked again and again."""
        ran = time.monotonic()

        def refuse() -> None:
            nonlocal ran
            now = time.monotonic()
            if not is_stopped(self.pid):
                ran = now
            elif now - ran > STOPPED_S:
                raise DeadlinePassed(f"the supervisor was stopped for {STOPPED_S:g} s")

        return refuse
