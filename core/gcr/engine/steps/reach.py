"""Refuses a move after which devices would not reach the memory of others that they use."""

from collections.abc import Iterator

from msgspec import Struct

from gcr.engine.copyout import StagedCopy
from gcr.engine.reach import Use, foreign_uses, own_uses, parted
from gcr.engine.restore import Restore
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.errors import WrongDevice


class CheckReach(Struct, frozen=True):
    """Refuses a move that parts devices, before any memory is made. Needs the owners that `Join` found."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        """Raises WrongDevice."""
        for target in self.restore.targets:
            if target.moves:
                self._check(target)

    def _check(self, target: Target) -> None:
        reaches = self.restore.node.control(target.world).reaches
        if use := parted(self._uses(target), target.moves, reaches):
            memory = "its own memory" if use.owner == use.pid else f"memory of process {use.owner}"
            text = f"{use.device} does not reach {use.home}, where process {use.pid} would use {memory}"
            raise WrongDevice(text, hint="choose devices with P2P: docs/limitations.md#other-devices")

    def _uses(self, target: Target) -> Iterator[Use]:
        if target.bytes_by_device:
            image = self.restore.image
            sealed = StagedCopy.of(image.tables(target.pid) if image else target.staged())
            try:
                yield from own_uses(target.pid, sealed.tables)
            finally:
                sealed.close()
        yield from foreign_uses(target.pid, target.shares.foreign, target.borrowed, target.process.seen.uuids)
