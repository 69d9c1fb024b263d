"""Strategy `copyout`: the agent of a process copies its data to the arena, before any of it is released."""

from functools import partial

from msgspec import Struct

from gcr.engine.copyout import AgentCopy, StagedCopy
from gcr.engine.progress import Meter
from gcr.engine.sealing import seal
from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.stage import keep, unstage
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import NoRoom
from gcr.protocol.operations.worker import Drained
from gcr.protocol.wire import FrameType


class CopyOut(Struct, frozen=True):
    """Copies and stages every byte of those processes that copy by themselves. Raises NoRoom where bytes stream."""

    work: Work
    meter: Meter

    def do(self, undo: Transaction) -> None:
        work = self.work
        copying = [target for target in work.targets if target.process.copied_out]
        if copying and work.stream:
            raise NoRoom(f"process {copying[0].pid} must copy by itself, for which there is no room", missing=None)
        for target in copying:
            undo.push("stage", partial(unstage, work, target))  # after the mapping back, which may need the copy
        side_by_side(partial(self._copy, target) for target in copying)

    def _copy(self, target: Target) -> None:
        work, meter, limit = self.work, self.meter, self.work.node.config.drain_s
        target.copy = staged = StagedCopy.of(seal(target, lay_out=True))
        meter.start()
        copy = AgentCopy(
            target.process.agent,
            target.transaction,
            staged,
            tell=lambda device, done: meter.at((target.pid, device), done),
            check=partial(work.course.left, limit),
        )
        seconds = copy.run(FrameType.COPY_OUT, work.course.left(limit))
        for device, size in copy.moved.items():
            handles = len(target.books.table.of_device(device))
            work.drained[target.pid, device] = Drained(size, seconds, copied=size, handles=handles, snapshot=0)
        work.course.mark("copied_out")
        keep(target, staged.fds)
