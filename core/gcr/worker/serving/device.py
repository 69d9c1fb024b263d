"""The operations on a worker's context and arena, which serve all processes."""

from msgspec import Struct

from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker.holdings import Holdings
from gcr.worker.link import Link
from gcr.worker.preparing import Preparing
from gcr.worker.snapshot import spare_bytes


class DeviceServing(Struct, frozen=True):
    """`cold_s`: seconds that the worker's start took."""

    holdings: Holdings
    link: Link
    preparing: Preparing
    cold_s: float

    def operations(self) -> Handlers:
        attachment, preparing = self.holdings.attachment, self.preparing
        return {
            ops.Ready: lambda _asked, _fds, _request: None,
            ops.Attach: lambda _asked, _fds, _request: Answer(ops.Attached(attachment.attach())),
            ops.Detach: lambda _asked, _fds, _request: self.holdings.detach(),
            ops.Memory: lambda _asked, _fds, _request: Answer(self._counted()),
            ops.ArenaState: lambda _asked, _fds, _request: Answer(self._arena()),
            # The arena grows after the answer, until all processes that asked can leave at once.
            ops.Prepare: lambda asked, _fds, _request: preparing.wish(asked.hold, asked.bytes),
            ops.Prepared: lambda _asked, _fds, _request: Answer(ops.PreparedBytes(preparing.ready())),
        }

    def _counted(self) -> ops.Counted:
        held, attachment = self.holdings.device_bytes(), self.holdings.attachment
        found = attachment.drain.memory()
        return ops.Counted(dict(found.by_pid), attachment.beyond_rest(found) - held, spare_bytes(found))

    def _arena(self) -> ops.ArenaFacts:
        arena = self.holdings.arena
        return ops.ArenaFacts(arena.bytes, arena.pinned_bytes, self.cold_s, **self.link.speeds)
