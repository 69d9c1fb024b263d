"""The operations on the ring of a process, through which its bytes pass to an image or from it."""

import os

from msgspec import Struct

from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker.holdings import Holdings
from gcr.worker.streaming import drop_ring, empty, fill, lay_out_held, make_ring


class RingServing(Struct, frozen=True):
    holdings: Holdings

    def operations(self) -> Handlers:
        of = self.holdings.of
        return {
            ops.MakeRing: lambda asked, _fds, _request: self._make(asked),
            ops.LayOutHeld: lambda asked, _fds, _request: Answer(ops.Bytes(lay_out_held(of(asked.hold)))),
            ops.Fill: lambda asked, _fds, _request: fill(of(asked.hold), asked.window, asked.deadline),
            ops.Empty: lambda asked, _fds, _request: empty(of(asked.hold), asked.window, asked.deadline),
            ops.DropRing: lambda asked, _fds, _request: self._drop(asked),
        }

    def _make(self, asked: ops.MakeRing) -> Answer:
        holding = self.holdings.of(asked.hold, asked.owner)
        ring = make_ring(holding, asked.slot_bytes, asked.most, asked.least, asked.beyond)
        return Answer(ops.Slots(ring.count), [*map(os.dup, self.holdings.arena.fds(ring.segments))])

    def _drop(self, asked: ops.DropRing) -> None:
        if known := self.holdings.known(asked.hold):
            drop_ring(known)
