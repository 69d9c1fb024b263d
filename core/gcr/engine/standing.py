"""Processes that a failed checkpoint could not bring back: tried again, then told apart."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from gcr import units
from gcr.engine.target import Target
from gcr.errors import DriverError, DriverGone, NoDescriptors, NoRoom, NotTakenBack, StandsStill
from gcr.job.states import State

log = logging.getLogger("gcr.engine")

TRIES, POLL = 5, 0.2  # of a driver that refuses; seconds in between


def insist(target: Target, step: Callable[[], object]) -> None:
    """Takes a step of a process's way back; a driver that refuses is asked again, a few times.

    Raises DriverGone at once, DriverError, NoRoom, NoDescriptors.
    """
    for _ in range(TRIES - 1):
        try:
            step()
            return
        except DriverGone:
            raise
        except DriverError as error:
            log.warning(
                "job %s: process %d does not take its memory back yet: %s", target.process.job, target.pid, error
            )
            time.sleep(POLL)
    step()


def refuse_as_left(
    job: str, error: Exception, left: Mapping[int, NoDescriptors | NoRoom], stuck: Sequence[Target]
) -> None:
    """Raises NotTakenBack or StandsStill where the failure `error` could not be undone for every process.

    left: by pid, why a process is left suspended · stuck: processes that have their memory with gcr alone.
    """
    if stuck := [target for target in stuck if not target.process.departed]:
        pids = ", ".join(str(target.pid) for target in stuck)
        text = f"{error}; and process {pids} stands still: it cannot take its memory back, which gcr keeps"
        raise StandsStill(text, state=stuck[0].process.state, hint="gcr recover; gcr ps") from error
    if left:
        pids = ", ".join(map(str, left))
        missing = sum(short.missing or 0 for short in left.values() if isinstance(short, NoRoom))
        short_by = f", {units.size(missing)} short on its device" if missing else ""
        hint = f"gcr restore {job}"
        text = f"{error}; and process {pids} cannot run on{short_by}: it is suspended"
        raise NotTakenBack(text, missing=missing, state=State.DATA_SUSPENDED, hint=hint) from error
