"""STAGE: the process and its keeper receive what they need to come back without gcr's daemon and workers.

An image that builds upon another one receives the same bytes, with what the device's hashes say of the parent's.
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from gcr.engine.sealing import seal
from gcr.engine.steps.run_on import Copied
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import PeerGone
from gcr.protocol.seqpacket import close_all


class Stage(Struct, frozen=True):
    """Seals what the workers copied. Whichever process dies from here on, two others still hold the bytes."""

    work: Work

    def do(self, undo: Transaction) -> None:
        for target in self.work.targets:
            if not target.process.copied_out:
                undo.push("stage", partial(unstage, self.work, target))
                self._stage(target)
        self.work.course.mark("staged")

    def _stage(self, target: Target) -> None:
        fds = seal(target)
        try:
            keep(target, fds)
        finally:
            close_all(fds)


class Lend(Struct, frozen=True):
    """Hands the staged copies to the image's writer, which reads what the parent has not. It holds them until its end.

    Copies of processes that copied themselves are lent later, as they were staged.
    """

    work: Work
    copied: Copied

    def do(self, undo: Transaction) -> None:
        for target in self.work.targets:
            if target.bytes_by_device and not target.process.copied_out:
                self.copied(target, seal(target, partial=True))


def keep(target: Target, fds: Sequence[int]) -> None:
    """Gives the sealed table and the segments to the agent and to the keeper.

    Where the supervisor dies here its escrow is gone and no way leads back; but the next keeper can stage.
    """
    target.process.agent.stage(target.transaction, fds)
    try:
        target.keeper().stage(target.pid, fds, 0)
    except PeerGone:
        target.keeper().stage(target.pid, fds, 0)


def unstage(work: Work, target: Target) -> None:
    """Undoes `keep`, of a process that runs on."""
    if target not in work.leftovers:
        quietly("unstage", lambda: target.keeper().unstage_all(target.pid))
        quietly("drop", partial(target.process.agent.drop, target.transaction))
