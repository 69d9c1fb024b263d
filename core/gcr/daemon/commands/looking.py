"""The commands that only look: `ps`, `devices` and `status`."""

import logging
import os
from functools import partial
from typing import Any

from msgspec import to_builtins

from gcr.daemon import reports
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.permission import OURSELVES, Caller
from gcr.daemon.present import devices_of
from gcr.daemon.readiness import of_job, ready_bytes
from gcr.engine.side_by_side import side_by_side
from gcr.errors import GcrError
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import is_stopped
from gcr.version import __version__

log = logging.getLogger("gcr.daemon")


def ps(node: Coordinator, caller: Caller = OURSELVES) -> dict[str, Any]:
    """Returns the caller's `jobs`, and pids that were under a former daemon and have not come to this one."""
    missing = node.jobs.await_all()
    jobs = [job for job in node.jobs.all() if not job.busy and caller.may_use(job.owner)]
    running = [process for job in jobs for process in job.living if process.state == State.RUNNING]
    side_by_side(partial(_look, process) for process in running if not is_stopped(process.identity.pid))
    shown = [job for job in node.jobs.all() if caller.may_use(job.owner)]
    ready = ready_bytes(node.fleet.living_workers())
    rows = [{**reports.of_job(job, node.labels), "arena": of_job(job, ready)} for job in shown]
    return {"jobs": rows, "awaited": [each.pid for each in missing]}


def _look(process: Process) -> None:
    try:
        process.look()
    except GcrError as error:
        log.debug("process %d: %s", process.identity.pid, error)


def devices(node: Coordinator, caller: Caller = OURSELVES) -> dict[str, Any]:
    """Returns the devices that the caller's jobs see."""
    seen = [job.world for job in node.jobs.all() if caller.may_use(job.owner)]
    return {"devices": devices_of(seen, node.control)}


def status(node: Coordinator) -> dict[str, Any]:
    """Returns facts about the daemon and its workers."""
    workers = [{"device": w.device, "pid": w.pid, **to_builtins(w.arena())} for w in node.fleet.living_workers()]
    return {
        "pid": os.getpid(),
        "version": __version__,
        "arena_bytes": sum(w["bytes"] for w in workers),
        "arena_pinned_bytes": sum(w["pinned_bytes"] for w in workers),
        "jobs": len(node.jobs.all()),
        "workers": workers,
    }
