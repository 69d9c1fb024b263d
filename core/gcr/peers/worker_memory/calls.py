"""Calls of a worker. They raise the worker's own error, PeerGone or DeadlinePassed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from gcr.drain import HandleSpec, spec_to_json
from gcr.peers.waiting import BRIEF, CALL_TIMEOUT
from gcr.protocol.batches import counted
from gcr.protocol.channel import Channel
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import A, Nothing, Operation, Progress, ask
from gcr.protocol.seqpacket import close_all

D = TypeVar("D", bound=ops.Descriptors)


class WorkerCalls(Struct):
    """The channel to a worker, with the typed call that all its parts use."""

    channel: Channel

    def _call(
        self,
        operation: Operation[A],
        fds: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
        progress: Progress | None = None,
    ) -> A:
        """Returns the answer, and closes descriptors that came with it."""
        timeout = min(timeout, BRIEF) if self.channel.silent else timeout
        answer, extra = ask(self.channel, operation, fds, timeout=timeout, on_progress=progress)
        close_all(extra)
        return answer

    def _tell(self, operation: Operation[Nothing]) -> None:
        """Sends an operation that needs no answer. Raises PeerGone, DeadlinePassed."""
        self.channel.notice(operation.op, operation.to_json())

    def _given(self, operation: Operation[Nothing]) -> list[int]:
        """Returns the descriptors of the answer, the caller's."""
        return ask(self.channel, operation, timeout=CALL_TIMEOUT)[1]

    def _all_given(
        self, operation: Operation[D], page: Callable[[int, int], ops.Page], timeout: float = CALL_TIMEOUT
    ) -> tuple[D, list[int]]:
        """Returns the answer, and all of its descriptors, the caller's, also those that one message does not hold.

        page: the operation that gives those from an offset on. Raises RolledBack where the worker gives another number.
        """
        answer, first = ask(self.channel, operation, timeout=timeout)
        found = counted(lambda at, limit: self._given(page(at, limit)), answer.descriptors, self.channel.name, first)
        return answer, found


def rows(specs: Sequence[HandleSpec]) -> tuple[ops.Row, ...]:
    """Returns handles as their rows in an operation."""
    return tuple(map(spec_to_json, specs))
