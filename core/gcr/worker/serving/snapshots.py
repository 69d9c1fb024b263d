"""The operations on snapshots, which wait in free device memory for their way to the host."""

import time
from threading import Lock

from msgspec import Struct, field

from gcr.protocol.channel import Request
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker import aside
from gcr.worker.holdings import Holdings
from gcr.worker.link import OUT, Link
from gcr.worker.snapshot import LAST_READ_S
from gcr.worker.taking import copy_on, give_up_snapshot, make_room


class SnapshotServing(Struct, frozen=True):
    holdings: Holdings
    link: Link
    room: Lock = field(default_factory=Lock)  # taken before a copy's: one call at a time takes free room

    def operations(self) -> Handlers:
        return {
            ops.SetAside: lambda asked, _fds, _request: Answer(self._set_aside(asked)),
            ops.ReadInPlace: lambda asked, _fds, _request: Answer(self._read_in_place(asked)),
            ops.MakeRoom: lambda asked, _fds, _request: Answer(self._make_room(asked)),
            ops.CopyOn: lambda asked, _fds, request: Answer(self._copy_on(asked, request)),
            ops.GiveUpSnapshots: lambda _asked, _fds, _request: self._give_up(),
        }

    def _make_room(self, asked: ops.MakeRoom) -> ops.Bytes:
        with self.room:
            return ops.Bytes(make_room(self.holdings.copy(asked.copy), asked.deadline))

    def _set_aside(self, asked: ops.SetAside) -> ops.AsideFacts:
        copy = self.holdings.copy(asked.copy, asked.owner)
        end = time.monotonic() + asked.deadline
        left = aside.set_aside(copy, asked.pieces, asked.fills, end, self.room)
        return ops.AsideFacts(tuple(part.size for part in copy.segments or ()), left)

    def _read_in_place(self, asked: ops.ReadInPlace) -> ops.Moved:
        return aside.read_in_place(self.holdings.copy(asked.copy), asked.deadline)

    def _copy_on(self, asked: ops.CopyOn, request: Request) -> ops.Moved:
        teller = self.link.teller(request, OUT)
        return copy_on(self.holdings.copy(asked.copy), asked.deadline, teller)

    def _give_up(self) -> None:
        end = time.monotonic() + LAST_READ_S
        with self.room:
            for copy in self.holdings.copies():
                give_up_snapshot(copy, end)
