"""The operations on rings, through which the bytes of a process pass to an image or from it."""

from msgspec import Struct

from gcr.memory.escrow import duplicate
from gcr.protocol.batches import BATCH
from gcr.protocol.operations import ring as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.operations.worker import Bytes
from gcr.worker.holdings import Holdings
from gcr.worker.streaming import empty, fill, lay_out_held, make_ring, ring_of


class RingServing(Struct, frozen=True):
    holdings: Holdings

    def operations(self) -> Handlers:
        copy = self.holdings.copy
        return {
            ops.MakeRing: lambda asked, _fds, _request: self._make(asked),
            ops.RingMemory: lambda asked, _fds, _request: Answer(fds=self._some_memory(asked)),
            ops.LayOutHeld: lambda asked, _fds, _request: Answer(Bytes(lay_out_held(copy(asked.copy)))),
            ops.Fill: lambda asked, _fds, _request: fill(copy(asked.copy), asked.slot, asked.windows, asked.deadline),
            ops.Empty: lambda asked, _fds, _request: empty(copy(asked.copy), asked.slot, asked.windows, asked.deadline),
            ops.DropRing: lambda asked, _fds, _request: self._drop(asked),
        }

    def _make(self, asked: ops.MakeRing) -> Answer:
        copy = self.holdings.copy(asked.copy, asked.owner)
        with copy.lock:
            ring = make_ring(copy, asked.slot_bytes, asked.most, asked.least, asked.beyond)
            memory = ring.segments.fds
            return Answer(ops.Slots(len(memory), ring.count), duplicate(memory[:BATCH]))

    def _some_memory(self, asked: ops.RingMemory) -> list[int]:
        """Raises WrongState without a ring."""
        copy = self.holdings.copy(asked.copy)
        with copy.lock:
            return duplicate(asked.of(ring_of(copy).segments.fds))

    def _drop(self, asked: ops.DropRing) -> None:
        if known := self.holdings.known_copy(asked.copy):
            known.drop_ring()
