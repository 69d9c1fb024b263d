"""Pinned room on the host, made before a checkpoint asks for it, and the end of exports that stand for no use."""

import logging
import time
from contextlib import suppress
from functools import partial

from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job, Jobs
from gcr.engine.tidying import quietly
from gcr.errors import GcrError
from gcr.job.process import Prepared, Process
from gcr.job.states import State, Strategy

log = logging.getLogger("gcr.daemon")

ARENA_AHEAD = 1.05


def prepare_arena(node: Coordinator, job: Job) -> None:
    """Has workers fill and pin host memory for a job's running processes. Raises nothing."""
    for process in job.living:
        if process.state != State.RUNNING or process.strategy == Strategy.DRIVER:
            continue
        try:
            _prepare(node, job, process)
        except GcrError as error:
            log.info("job %s: process %d: arena not prepared: %s", job.name, process.identity.pid, error)


def end_standing(jobs: Jobs, job: Job) -> None:
    """Ends exports that stand for the next save, where they cost more than they spare or no save comes."""
    for process in filter(jobs.standing.is_due, job.living):
        if not job.busy:
            with suppress(GcrError), jobs.saving(job, process.identity.pid):  # else it is tried again in a second
                jobs.standing.end([process])


def _prepare(node: Coordinator, job: Job, process: Process) -> None:
    devices = process.look().devices
    uuids = [process.seen.uuids[device.ordinal] for device in devices]
    node.labels.learn(job.world, uuids, node.control(job.world).devices)
    for device in devices:
        if device.covered_bytes:
            _prepare_device(node, job, process, process.seen.uuids[device.ordinal], device.covered_bytes)


def _prepare_device(node: Coordinator, job: Job, process: Process, device: str, covered: int) -> None:
    """Asks for a worker with its context, and pinned room for what the process has there and some more."""
    wanted, now = int(covered * ARENA_AHEAD), time.monotonic()
    known = process.prepared.get(device)
    warm = node.warm_worker(job.world, device)
    if known and warm and known.covers(warm.pid, covered, now):
        return
    worker = node.worker(job.world, device)
    worker.prepare(process.hold, wanted)
    process.prepared[device] = Prepared(worker.pid, wanted, now)
    if process.state == State.EXITED:  # meanwhile: the worker may have heard of its end before the wish
        quietly("forfeit", partial(worker.forfeit, process.hold))
