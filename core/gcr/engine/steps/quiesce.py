"""QUIESCE: gates are closed, calls in flight end, and the devices are waited for."""

from functools import partial

from msgspec import Struct

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
        pulse = work.node.config.pulse_ms
        steps = [partial(t.process.agent.quiesce, t.transaction, limit, pulse) for t in work.targets]
        side_by_side(steps, ALL)  # the work of one process may wait for that of another
        for target in work.targets:
            target.process.move(State.QUIESCED)
        work.course.mark("quiesced")

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
