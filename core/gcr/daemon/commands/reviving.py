"""A stopped job comes back from its image by this daemon, as a part of a cut over several nodes does.

Else the user's command, `gcr restore --image`, makes the processes, and they stay, suspended, where the rest of the
restore fails. Here the daemon has that command make them, and ends them where the rest fails: then the job is stopped
as before, and its image is whole.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gcr.api.requests import RestoreRequest
from gcr.cuterrors import CannotHold
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import NO_TIMEOUT
from gcr.daemon.jobs import Job
from gcr.daemon.permission import Caller
from gcr.errors import GcrError, NoSuchJob
from gcr.job.decisions import KeptImage
from gcr.job.runs import STOPPED
from gcr.library.answers import asked
from gcr.rendezvous.launch import daemon_environment
from gcr.runtime import socket_path
from gcr.trees import end_all, tree_of

GONE_S = 10.0  # for the supervisor of the job to say that it has ended
POLL = 0.01
RUNS = "restored"  # kind of a decision: the job is to run, and a successor of this daemon opens the gates


@contextmanager
def processes(node: Coordinator, request: RestoreRequest, caller: Caller) -> Iterator[None]:
    """Has the processes of a stopped job made before the block, and ended where the block fails.

    They are suspended within the block. If it fails after the decision that they run, they run. Does nothing for a job
    that is here, and where the request does not ask for it. Raises NotOurs, CannotHold where only the caller can read
    the image, and as `gcr restore --image`; then no process is made. That takes as long as store and CRIU do, also
    where the caller leaves.
    """
    if not _is_stopped(node, request, caller):
        yield
        return
    _make(request, caller)
    try:
        yield
    except BaseException as error:
        job = node.jobs.by_name.get(str(request.target))
        if job is not None and job.decision is not None and job.decision.kind != RUNS:
            _end(node, job, KeptImage(str(request.store), str(request.image)))
            if isinstance(error, GcrError):
                error.state = STOPPED
        raise


def _is_stopped(node: Coordinator, request: RestoreRequest, caller: Caller) -> bool:
    """Returns whether the job is not here, and may be in the image."""
    if not request.revive:
        return False
    try:
        node.jobs.find(request.target, caller.may_use)
    except NoSuchJob:
        return True
    return False


def _make(request: RestoreRequest, caller: Caller) -> None:
    caller.check_owner(os.getuid(), f"image {request.image}")
    if request.encrypted:
        text = f"job {request.target} is in image {request.image} alone, and only the caller has the key of its store"
        raise CannotHold(text, hint=f"gcr restore --image {request.image}, on each node")
    without_key = ("--key-file", "")  # in spite of the settings: the request says that the store is plain
    words = ["restore", "--image", str(request.image), "--store", str(request.store), *without_key, "--suspended"]
    environment = {**daemon_environment(), "GCR_SOCKET": str(socket_path())}
    asked([*words, str(request.target)], NO_TIMEOUT, environment, "/")


def _end(node: Coordinator, job: Job, kept: KeptImage) -> None:
    job.ends.stopped_into = kept
    end_all(job.name, tree_of([pid for pid in (job.program.pid, *job.processes) if pid]))
    end = time.monotonic() + GONE_S
    while job in node.jobs.all() and time.monotonic() < end:
        node.jobs.settle(job)
        time.sleep(POLL)
