"""A process that lost its driver while its memory was elsewhere: nothing can come back to the process."""

import logging
from functools import partial

from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.job.states import State

log = logging.getLogger("gcr.engine")


def depart(target: Target) -> None:
    """Opens the gate of the process, and lets go of its memory everywhere. Raises nothing.

    The driver refuses every call of the program, as it does without gcr; so the program goes on to its end.
    """
    log.info("job %s: process %d: its driver has shut down; it goes on to its end", target.process.job, target.pid)
    target.process.seen.ending = True
    quietly("open the gate", target.resume)
    let_go(target)
    target.process.settle(State.RUNNING)


def let_go(target: Target) -> None:
    """Lets go of all that is kept of a process, as far as the workers and keepers answer."""
    for device in target.bytes_by_device:
        if worker := target.node.warm_worker(target.world, device):
            quietly("forfeit", partial(worker.forfeit, target.hold))
    quietly("forget", lambda: target.keeper().forget(target.pid))
    target.spare.close()
