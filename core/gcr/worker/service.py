"""The operations that a worker offers its daemon, put together; `WorkerPeer` is their other end."""

from functools import partial
from typing import Any

from gcr.protocol.batches import Incoming
from gcr.protocol.channel import Request
from gcr.protocol.operations import coming, ring, snapshot
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Dispatcher, Handler, Handlers, Operation
from gcr.worker.bounce import Slots
from gcr.worker.holdings import Holdings
from gcr.worker.link import Link
from gcr.worker.preparing import Preparing
from gcr.worker.serving.coming import ComingServing
from gcr.worker.serving.copies import CopyServing
from gcr.worker.serving.device import DeviceServing
from gcr.worker.serving.handles import HandleServing
from gcr.worker.serving.rings import RingServing
from gcr.worker.serving.snapshots import SnapshotServing
from gcr.worker.steps import Steps

STEPS: frozenset[type[Operation[Any]]] = frozenset(
    {
        ops.Reserve,
        ops.Adopt,
        ops.Reclaim,
        ops.Create,
        ops.Drain,
        snapshot.SetAside,
        snapshot.ReadInPlace,
        ops.Refill,
        ops.RefillAhead,
        snapshot.CopyOn,
        ring.Fill,
        ring.Empty,
        coming.Fit,
        coming.Inherit,
        ops.Seal,
        ops.SealedSegments,
    }
)
"""Operations during which a program may stand still, or wait."""

HASH_SECONDS = 30.0  # that the first hash may take


class WorkerService:
    """All operations of a worker, and those that end its part in a process.

    cold_s: seconds of its start · threads: of a refill from memory that is not pinned
    """

    def __init__(self, holdings: Holdings, cold_s: float, threads: int = 1) -> None:
        self.holdings, self.steps = holdings, Steps()
        self.link = Link(holdings.attachment, holdings.arena)
        self.preparing = Preparing(holdings.arena, self._before_growth, self.steps.busy)
        self._incoming, self._slots = Incoming(), Slots(holdings.arena, threads)
        self.operations = Dispatcher("a worker", self._counted(self._handlers(cold_s)))

    def _before_growth(self) -> None:
        self.link.measure()
        if self.holdings.leaves_copies:
            self.holdings.attachment.make_ready_to_hash(HASH_SECONDS)

    def serve(self, request: Request) -> None:
        self.operations.serve(request)

    def _handlers(self, cold_s: float) -> Handlers:
        ends: Handlers = {
            ops.Release: lambda asked, _fds, _request: self._release(asked),
            ops.Forfeit: lambda asked, _fds, _request: self._forfeit(asked),
            ops.Surrender: lambda asked, _fds, _request: self._surrender(asked),
        }
        return {
            **ends,
            **DeviceServing(self.holdings, self.link, self.preparing, cold_s).operations(),
            **HandleServing(self.holdings).operations(),
            **CopyServing(self.holdings, self.link, self._incoming, self._slots).operations(),
            **SnapshotServing(self.holdings, self.link).operations(),
            **RingServing(self.holdings).operations(),
            **ComingServing(self.holdings).operations(),
        }

    def _counted(self, handlers: Handlers) -> Handlers:
        return {kind: partial(self._step, each) if kind in STEPS else each for kind, each in handlers.items()}

    def _step(self, handler: Handler, asked: Any, fds: list[int], request: Request) -> Answer | None:
        with self.steps.counted():
            return handler(asked, fds, request)

    def _release(self, asked: ops.Release) -> None:
        if known := self.holdings.known(asked.hold):
            known.release()

    def _forfeit(self, asked: ops.Forfeit) -> None:
        if known := self.holdings.known(asked.hold):
            known.forfeit()
        self._forget(asked.hold)
        self.preparing.end(asked.hold)

    def _surrender(self, asked: ops.Surrender) -> None:
        if known := self.holdings.known(asked.hold):
            known.surrender()
        self._forget(asked.hold)
        self.preparing.forget(asked.hold)

    def _forget(self, hold: str) -> None:
        self.holdings.remove(hold)
        self._incoming.drop(hold)
