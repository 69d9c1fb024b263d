"""The operations on device memory of a process that is on its way here."""

from msgspec import Struct

from gcr.protocol.operations import coming as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.protocol.operations.worker import Bytes, HeldIds
from gcr.worker import coming
from gcr.worker.holdings import Holdings


class ComingServing(Struct, frozen=True):
    holdings: Holdings

    def operations(self) -> Handlers:
        return {
            ops.Fit: lambda asked, _fds, _request: Answer(self._fit(asked)),
            ops.Inherit: lambda asked, _fds, _request: Answer(self._inherit(asked)),
        }

    def _fit(self, asked: ops.Fit) -> HeldIds:
        return HeldIds(tuple(coming.fit(self.holdings.copy(asked.copy))))

    def _inherit(self, asked: ops.Inherit) -> Bytes:
        return Bytes(coming.inherit(self.holdings, asked.copy.hold, asked.copy.transaction, asked.coming))
