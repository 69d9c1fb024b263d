"""The operations on rings, through which the bytes of a process pass to an image or from it."""

import os

from msgspec import Struct

from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker.holdings import Holdings
from gcr.worker.streaming import empty, fill, lay_out_held, make_ring


class RingServing(Struct, frozen=True):
    holdings: Holdings

    def operations(self) -> Handlers:
        copy = self.holdings.copy
        return {
            ops.MakeRing: lambda asked, _fds, _request: self._make(asked),
            ops.LayOutHeld: lambda asked, _fds, _request: Answer(ops.Bytes(lay_out_held(copy(asked.copy)))),
            ops.Fill: lambda asked, _fds, _request: fill(copy(asked.copy), asked.window, asked.deadline),
            ops.Empty: lambda asked, _fds, _request: empty(copy(asked.copy), asked.window, asked.deadline),
            ops.DropRing: lambda asked, _fds, _request: self._drop(asked),
        }

    def _make(self, asked: ops.MakeRing) -> Answer:
        copy = self.holdings.copy(asked.copy, asked.owner)
        ring = make_ring(copy, asked.slot_bytes, asked.most, asked.least, asked.beyond)
        return Answer(ops.Slots(ring.count), [*map(os.dup, self.holdings.arena.fds(ring.segments))])

    def _drop(self, asked: ops.DropRing) -> None:
        if known := self.holdings.known_copy(asked.copy):
            known.drop_ring()
