"""QUIESCE: gates are closed, calls in flight end, and the devices are waited for."""

import time
from functools import partial

from msgspec import Struct

from gcr.engine.closing import Closing
from gcr.engine.led import come_to_rest
from gcr.engine.side_by_side import ALL, side_by_side
from gcr.engine.steps.prepare import take_room
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.job.states import State

CATCHING_UP = 5  # times at most, with a job that makes more meanwhile


class Quiesce(Struct, frozen=True):
    """Stops the programs, once their latest memory is exported. `Prepare.run_on` opens the gates again."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.course.tell("stopping")
        self.catch_up()
        limit = work.course.left(work.node.config.quiesce_s)
        work.course.mark("stop")
        self.stop(limit)
        for target in work.targets:
            target.process.move(State.QUIESCED)
        work.course.mark("quiesced")

    def stop(self, limit: float) -> None:
        """Stops one process by itself, and several together: the work of one may wait for a call of another.

        In a cut over several nodes it may wait for a call on another node, too.
        """
        work, config = self.work, self.work.node.config
        if work.course.part and work.targets and config.pulse_ms:
            come_to_rest(work, limit)
            return
        if len(work.targets) > 1 and config.pulse_ms:
            end = time.monotonic() + limit
            Closing(work.job, work.targets, lambda: work.course.left(max(0.0, end - time.monotonic()))).run()
            return
        steps = [partial(t.process.agent.quiesce, t.transaction, limit, config.pulse_ms) for t in work.targets]
        side_by_side(steps, ALL)

    def catch_up(self) -> None:
        """Exports what the job made since PREPARE, and while that was done.

        Neither this memory nor its room on the host costs a standstill then.
        """
        work = self.work
        for _ in range(CATCHING_UP):
            work.course.left(work.node.config.prepare_s)
            made = sum(side_by_side(target.exports.export_new for target in work.targets))
            if not work.stream:
                take_room(work)
            if made <= work.node.config.batch:
                return
