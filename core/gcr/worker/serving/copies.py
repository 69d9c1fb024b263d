"""The operations on copies of processes in a worker's arena."""

import os
from collections.abc import Sequence

from msgspec import Struct

from gcr.drain import spec_from_json
from gcr.errors import UsageError
from gcr.hashing.baseline import Baseline
from gcr.memory.bundles import Bundle, bundled
from gcr.memory.escrow import duplicate
from gcr.memory.layout import SealedTable
from gcr.protocol.batches import BATCH, Incoming
from gcr.protocol.channel import Request
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.seqpacket import close_all
from gcr.worker import ahead
from gcr.worker.bounce import Slots
from gcr.worker.holdings import Holdings
from gcr.worker.hostcopy import HostCopy
from gcr.worker.link import IN, OUT, Link
from gcr.worker.refilling import copy_in
from gcr.worker.taking import copy_live, copy_out

USUAL_BYTES_PER_S = 50e9  # of the link, before it was measured


class CopyServing(Struct, frozen=True):
    holdings: Holdings
    link: Link
    incoming: Incoming
    slots: Slots

    def operations(self) -> Handlers:
        return {
            ops.Reserve: lambda asked, _fds, _request: self._reserve(asked),
            ops.LayOut: lambda asked, _fds, _request: self._lay_out(asked),
            ops.CompareWith: lambda asked, fds, _request: self._compare_with(asked, fds),
            ops.CopyLive: lambda asked, _fds, request: Answer(self._copy_live(asked, request)),
            ops.Drain: lambda asked, _fds, request: Answer(self._drain(asked, request)),
            ops.Seal: lambda asked, _fds, _request: self._seal(asked),
            ops.SealedSegments: lambda asked, _fds, _request: Answer(fds=self._some_segments(asked)),
            ops.ForgetCopy: lambda asked, _fds, _request: self._forget_copy(asked),
            ops.Knows: lambda asked, _fds, _request: Answer(self._knows(asked)),
            ops.Reclaim: lambda asked, fds, _request: self._reclaim(asked, fds),
            ops.DriverAtWork: lambda asked, _fds, _request: self.holdings.driver_at_work(asked.hold, asked.seconds),
            ops.RefillAhead: lambda asked, _fds, _request: Answer(self._refill_ahead(asked)),
            ops.Refill: lambda asked, _fds, request: Answer(self._refill(asked, request)),
        }

    def _reserve(self, asked: ops.Reserve) -> None:
        self.holdings.copy(asked.copy, asked.owner).reserve_known(asked.bytes)

    def _lay_out(self, asked: ops.LayOut) -> None:
        self.holdings.copy(asked.copy, asked.owner).lay_out([spec_from_json(item) for item in asked.handles])

    def _compare_with(self, asked: ops.CompareWith, fds: list[int]) -> None:
        (fd,) = fds
        self.holdings.copy(asked.copy, asked.owner).compare_with(Baseline.from_fd(fd), asked.whole)

    def _copy_live(self, asked: ops.CopyLive, request: Request) -> ops.CopiedLive:
        copy = self.holdings.copy(asked.copy, asked.owner)
        return copy_live(copy, asked.deadline, self.link.teller(request, OUT), asked.beside)

    def _drain(self, asked: ops.Drain, request: Request) -> ops.Drained:
        copy, teller = self.holdings.copy(asked.copy, asked.owner), self.link.teller(request, OUT)
        return copy_out(copy, asked.deadline, teller, asked.paranoid, asked.last)

    def _seal(self, asked: ops.Seal) -> Answer:
        copy, about = self.holdings.copy(asked.copy), asked.about
        with copy.lock:
            table = (copy.seal_for_image(about) if asked.partial else copy.seal(about)).to_memfd()
            segments = self._segments(copy)
            try:
                return Answer(ops.Descriptors(1 + len(segments)), duplicate([table, *segments[: BATCH - 1]]))
            finally:
                os.close(table)

    def _some_segments(self, asked: ops.SealedSegments) -> list[int]:
        copy = self.holdings.copy(asked.copy)
        with copy.lock:
            return duplicate(asked.of(self._segments(copy)))

    def _segments(self, copy: HostCopy) -> list[int]:
        """Returns the arena's descriptors; none where the bytes passed through a ring."""
        return copy.segments.fds if copy.segments else []

    def _forget_copy(self, asked: ops.ForgetCopy) -> None:
        if known := self.holdings.known(asked.copy.hold):
            known.forget_copy(asked.copy.transaction)

    def _knows(self, asked: ops.Knows) -> ops.IsKnown:
        known = self.holdings.known_copy(asked.copy)
        return ops.IsKnown(known is not None and known.layout is not None)

    def _reclaim(self, asked: ops.Reclaim, fds: list[int]) -> None:
        if (arrived := self.incoming.add(asked.copy.hold, fds, asked.offset, asked.total)) is not None:
            self._take_over(asked, _of_device(arrived, asked.left))

    def _take_over(self, asked: ops.Reclaim, staged: Bundle[SealedTable]) -> None:
        os.close(staged.fds[0])
        self.holdings.copy(asked.copy, asked.owner).reclaim(staged.table, staged.segments)

    def _refill(self, asked: ops.Refill, request: Request) -> ops.Moved:
        copy, teller = self.holdings.copy(asked.copy), self.link.teller(request, IN)
        return copy_in(copy, asked.deadline, teller, self._paced, self.slots)

    def _refill_ahead(self, asked: ops.RefillAhead) -> ops.Bytes:
        known = self.holdings.known_copy(asked.copy)
        if known is None:
            return ops.Bytes(0)
        piece = ahead.Asked(asked.copy.transaction, asked.most, asked.begins)
        return ops.Bytes(ahead.refill_ahead(known, piece, asked.deadline, lambda: self.holdings.driver_s() > 0))

    def _paced(self, size: int) -> bool:
        """Tells whether a refill of this size lets the driver's copies in between: the driver would end after it."""
        return self.holdings.driver_s() > size / self.link.speeds.get(IN, USUAL_BYTES_PER_S)


def _of_device(fds: Sequence[int], device: str) -> Bundle[SealedTable]:
    """Returns what was staged of one device, and closes the rest. Takes the descriptors.

    Raises UsageError unless exactly one table is of the device, and as `bundled` does.
    """
    found = bundled(fds, SealedTable.from_fd)
    mine = [each for each in found if device in each.table.devices]
    if len(mine) != 1:
        close_all(fds)
        raise UsageError(f"{len(mine)} tables of device {device} were staged, one is needed")
    for each in found:
        if each is not mine[0]:
            each.close()
    return mine[0]
