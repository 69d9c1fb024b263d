"""The operations on copies of processes in a worker's arena."""

import os

from msgspec import Struct

from gcr.drain import spec_from_json
from gcr.errors import UsageError
from gcr.hashing.baseline import Baseline
from gcr.memory.layout import SealedTable
from gcr.protocol.batches import Incoming
from gcr.protocol.channel import Request
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.seqpacket import close_all
from gcr.worker.holdings import Holdings
from gcr.worker.link import IN, OUT, Link
from gcr.worker.refilling import copy_in
from gcr.worker.taking import copy_live, copy_out


class CopyServing(Struct, frozen=True):
    holdings: Holdings
    link: Link
    incoming: Incoming

    def operations(self) -> Handlers:
        return {
            ops.Reserve: lambda asked, _fds, _request: self._reserve(asked),
            ops.LayOut: lambda asked, _fds, _request: self._lay_out(asked),
            ops.CompareWith: lambda asked, fds, _request: self._compare_with(asked, fds),
            ops.CopyLive: lambda asked, _fds, request: Answer(self._copy_live(asked, request)),
            ops.Drain: lambda asked, _fds, request: Answer(self._drain(asked, request)),
            ops.Seal: lambda asked, _fds, _request: Answer(fds=self._seal(asked)),
            ops.ForgetCopy: lambda asked, _fds, _request: self._forget_copy(asked),
            ops.Knows: lambda asked, _fds, _request: Answer(self._knows(asked)),
            ops.Reclaim: lambda asked, fds, _request: self._reclaim(asked, fds),
            ops.Refill: lambda asked, _fds, request: Answer(self._refill(asked, request)),
        }

    def _reserve(self, asked: ops.Reserve) -> None:
        self.holdings.copy(asked.copy, asked.owner).reserve_known(asked.bytes)

    def _lay_out(self, asked: ops.LayOut) -> None:
        self.holdings.copy(asked.copy, asked.owner).lay_out([spec_from_json(item) for item in asked.handles])

    def _compare_with(self, asked: ops.CompareWith, fds: list[int]) -> None:
        (fd,) = fds
        self.holdings.copy(asked.copy, asked.owner).parent = Baseline.from_fd(fd)

    def _copy_live(self, asked: ops.CopyLive, request: Request) -> ops.CopiedLive:
        copy = self.holdings.copy(asked.copy, asked.owner)
        return copy_live(copy, asked.deadline, self.link.teller(request, OUT))

    def _drain(self, asked: ops.Drain, request: Request) -> ops.Drained:
        copy, teller = self.holdings.copy(asked.copy, asked.owner), self.link.teller(request, OUT)
        return copy_out(copy, asked.deadline, teller, asked.paranoid)

    def _seal(self, asked: ops.Seal) -> list[int]:
        copy, about = self.holdings.copy(asked.copy), asked.about
        table = (copy.seal_for_image(about) if asked.partial else copy.seal(about)).to_memfd()
        # Bytes that passed through a ring are in no segment.
        segments = self.holdings.arena.fds(copy.segments) if copy.segments else ()
        try:
            return [os.dup(table), *map(os.dup, segments)]
        finally:
            os.close(table)

    def _forget_copy(self, asked: ops.ForgetCopy) -> None:
        if known := self.holdings.known(asked.copy.hold):
            known.forget_copy(asked.copy.transaction)

    def _knows(self, asked: ops.Knows) -> ops.IsKnown:
        known = self.holdings.known_copy(asked.copy)
        return ops.IsKnown(known is not None and known.layout is not None)

    def _reclaim(self, asked: ops.Reclaim, fds: list[int]) -> None:
        if (arrived := self.incoming.add(asked.copy.hold, fds, asked.offset, asked.total)) is not None:
            table, segments = _sort_out(arrived, asked.left)
            self.holdings.copy(asked.copy, asked.owner).reclaim(table, segments)

    def _refill(self, asked: ops.Refill, request: Request) -> ops.Moved:
        return copy_in(self.holdings.copy(asked.copy), asked.deadline, self.link.teller(request, IN))


def _sort_out(fds: list[int], device: str) -> tuple[SealedTable, list[int]]:
    """Picks the table and segments of one device from table, segments, table, segments …; closes the rest."""
    mine: tuple[SealedTable, list[int]] | None = None
    rest = list(fds)
    try:
        while rest:
            table = SealedTable.from_fd(rest[0])
            segments = rest[1 : 1 + len(table.segments)]
            if device in table.devices:
                mine = table, segments
                os.close(rest[0])
            else:
                close_all(rest[: 1 + len(segments)])
            rest = rest[1 + len(segments) :]
    except BaseException:
        close_all(rest)
        raise
    if mine is None:
        raise UsageError(f"nothing of device {device} was staged")
    return mine
