"""The operations on snapshots, which wait in free device memory for their way to the host."""

import time
from threading import Lock

from gcr.protocol.channel import Request
from gcr.protocol.operations import snapshot
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker import aside
from gcr.worker.holdings import Holdings
from gcr.worker.link import OUT, Link
from gcr.worker.snapshot import LAST_READ_S
from gcr.worker.taking import copy_on, give_up_snapshot, make_room


class SnapshotServing:
    def __init__(self, holdings: Holdings, link: Link) -> None:
        self._holdings, self._link = holdings, link
        self._room = Lock()  # taken before a copy's: one call at a time takes free room

    def operations(self) -> Handlers:
        return {
            snapshot.Expect: lambda asked, _fds, _request: self._expect(asked),
            snapshot.SetAside: lambda asked, _fds, _request: Answer(self._set_aside(asked)),
            snapshot.ReadInPlace: lambda asked, _fds, _request: Answer(self._read_in_place(asked)),
            snapshot.MakeRoom: lambda asked, _fds, _request: Answer(self._make_room(asked)),
            snapshot.CopyOn: lambda asked, _fds, request: Answer(self._copy_on(asked, request)),
            snapshot.GiveUpSnapshots: lambda _asked, _fds, _request: self._give_up(),
            snapshot.RenewRoom: lambda _asked, _fds, _request: self._renew(),
        }

    def _make_room(self, asked: snapshot.MakeRoom) -> ops.Bytes:
        with self._room:
            return ops.Bytes(make_room(self._holdings.copy(asked.copy), asked.deadline))

    def _expect(self, asked: snapshot.Expect) -> None:
        if self._holdings.known(asked.copy.hold):  # it may have been forfeited meanwhile
            aside.expect(self._holdings.copy(asked.copy, asked.owner), asked.nbytes)

    def _set_aside(self, asked: snapshot.SetAside) -> snapshot.AsideFacts:
        copy = self._holdings.copy(asked.copy, asked.owner)
        end = time.monotonic() + asked.deadline
        left = aside.set_aside(copy, asked.pieces, asked.fills, end, self._room)
        return snapshot.AsideFacts(tuple(part.size for part in copy.segments or ()), left)

    def _read_in_place(self, asked: snapshot.ReadInPlace) -> ops.Moved:
        return aside.read_in_place(self._holdings.copy(asked.copy), asked.deadline)

    def _copy_on(self, asked: snapshot.CopyOn, request: Request) -> ops.Moved:
        teller = self._link.teller(request, OUT)
        return copy_on(self._holdings.copy(asked.copy), asked.deadline, teller)

    def _give_up(self) -> None:
        end = time.monotonic() + LAST_READ_S
        with self._room:
            for copy in self._holdings.copies():
                give_up_snapshot(copy, end)

    def _renew(self) -> None:
        with self._room:
            if not any(copy.room_bytes for copy in self._holdings.copies()):
                aside.renew_room(self._holdings.attachment.drain)
