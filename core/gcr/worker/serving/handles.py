"""The operations on device memory that a worker holds of a process."""

from msgspec import Struct

from gcr.drain import Handed, spec_from_json
from gcr.errors import WrongState
from gcr.protocol.channel import Request
from gcr.protocol.operations import worker as ops
from gcr.protocol.operations.operation import Answer, Handlers
from gcr.worker.holdings import Holdings


class HandleServing(Struct, frozen=True):
    holdings: Holdings

    def operations(self) -> Handlers:
        of = self.holdings.of
        return {
            ops.Held: lambda asked, _fds, _request: Answer(self._held(asked)),
            ops.Adopt: self._adopt,
            ops.Forget: lambda asked, _fds, _request: self._forget(asked),
            ops.Export: lambda asked, _fds, _request: Answer(fds=of(asked.hold).memory.export(asked.ids)),
            ops.Create: lambda asked, _fds, _request: Answer(self._create(asked)),
            ops.Uncreate: lambda asked, _fds, _request: self._uncreate(asked),
            ops.HoldBallast: lambda asked, _fds, _request: of(asked.hold).memory.hold_ballast(asked.bytes),
            ops.DropBallast: lambda asked, _fds, _request: self._drop_ballast(asked),
            ops.Stay: lambda asked, _fds, _request: Answer(self._stay(asked)),
            ops.Resident: lambda _asked, _fds, _request: Answer(ops.ResidentBytes(self.holdings.resident())),
            ops.Evict: lambda asked, _fds, _request: Answer(self._evict(asked)),
        }

    def _held(self, asked: ops.Held) -> ops.HeldIds:
        known = self.holdings.known(asked.hold)
        return ops.HeldIds(tuple(known.memory.ids()) if known else ())

    def _adopt(self, asked: ops.Adopt, fds: list[int], _request: Request) -> None:
        specs = [spec_from_json(item) for item in asked.handles]
        handed = [Handed(spec, fd) for spec, fd in zip(specs, fds, strict=True)]
        drain, holding = self.holdings.attachment.drain, self.holdings.of(asked.hold)
        fds.clear()  # the drain closes them
        holding.memory.adopt(handed, drain, asked.lent)

    def _forget(self, asked: ops.Forget) -> None:
        if known := self.holdings.known(asked.hold):
            known.forget(asked.ids)

    def _create(self, asked: ops.Create) -> ops.Bytes:
        return ops.Bytes(self.holdings.of(asked.copy.hold).create(asked.copy.transaction, asked.ballast))

    def _uncreate(self, asked: ops.Uncreate) -> None:
        if known := self.holdings.known(asked.hold):
            known.memory.uncreate()

    def _stay(self, asked: ops.Stay) -> ops.Bytes:
        known = self.holdings.known(asked.copy.hold)
        if known is None:  # its process has ended meanwhile
            raise WrongState("nothing is held of this process")
        return ops.Bytes(known.stay(asked.copy.transaction))

    def _evict(self, asked: ops.Evict) -> ops.Bytes:
        known = self.holdings.known(asked.hold)
        return ops.Bytes(known.memory.evict() if known else 0)

    def _drop_ballast(self, asked: ops.DropBallast) -> None:
        if known := self.holdings.known(asked.hold):
            known.memory.drop_ballast()
