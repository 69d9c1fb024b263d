"""Ends the processes of a job that is in an image."""

import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from gcr.processes import ProcessIdentity, alive, descendants, identify

log = logging.getLogger("gcr.trees")

POLL = 0.005
END_S = 30.0  # for the processes to end


def tree_of(pids: Sequence[int]) -> Sequence[ProcessIdentity]:
    """Returns these processes that live, the first of which is the program, and its descendants."""
    below = descendants(pids[0]) if pids else ()
    return [each for pid in sorted({*pids, *below}) if (each := identify(pid))]


def end_all(job: str, tree: Sequence[ProcessIdentity]) -> None:
    """Kills the processes that live, and waits for their ends. Raises nothing: the image has them in any case."""
    for identity in tree:
        if alive(identity):
            with suppress(ProcessLookupError):
                os.kill(identity.pid, signal.SIGKILL)
    end = time.monotonic() + END_S
    while left := [each for each in tree if alive(each)]:
        if time.monotonic() > end:
            log.error("job %s: process %d was ended, and lives on", job, left[0].pid)
            return
        time.sleep(POLL)
