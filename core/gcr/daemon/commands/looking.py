"""The commands that only look: `ps`, `devices` and `status`."""

import logging
import os
from functools import partial

from msgspec import to_builtins

from gcr.api.answers import DaemonStatus, WorkerInfo
from gcr.api.listings import DeviceList, JobList
from gcr.daemon import reports
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.permission import OURSELVES, Caller
from gcr.daemon.present import devices_of
from gcr.daemon.readiness import arena_of, ready_bytes
from gcr.daemon.shared_rows import shared
from gcr.engine.side_by_side import side_by_side
from gcr.errors import GcrError
from gcr.job.process import Process
from gcr.job.states import State
from gcr.peers.shares import shares_of
from gcr.peers.worker import WorkerPeer
from gcr.processes import is_stopped
from gcr.version import __version__

log = logging.getLogger("gcr.daemon")


def ps(node: Coordinator, caller: Caller = OURSELVES) -> JobList:
    """Returns the caller's `jobs`, and pids that were under a former daemon and have not come to this one."""
    missing = node.jobs.await_all()
    jobs = [job for job in node.jobs.all() if not job.busy and caller.may_use(job.owner)]
    running = [process for job in jobs for process in job.living if process.state == State.RUNNING]
    side_by_side(partial(_look, process) for process in running if not is_stopped(process.identity.pid))
    shown = [job for job in node.jobs.all() if caller.may_use(job.owner)]
    ready = ready_bytes(node.fleet.living_workers())
    between = shared([process for job in shown for process in job.living])
    there = {(one.worker.device, one.hold): one.bytes for one in node.residents.all()}
    rows = tuple(
        reports.of_job(job, node.labels, arena_of(job, ready), between, there, node.cuts.of(job)) for job in shown
    )
    return JobList(jobs=rows, awaited=tuple(each.pid for each in missing))


def _look(process: Process) -> None:
    try:
        process.look()
        process.seen.shares = shares_of(process.agent)
    except GcrError as error:
        log.debug("process %d: %s", process.identity.pid, error)


def devices(node: Coordinator, caller: Caller = OURSELVES) -> DeviceList:
    """Returns the devices that the caller's jobs see."""
    seen = [job.world for job in node.jobs.all() if caller.may_use(job.owner)]
    return DeviceList(devices=tuple(devices_of(seen, node.control)))


def status(node: Coordinator) -> DaemonStatus:
    """Returns facts about the daemon and its workers."""
    workers = tuple(
        WorkerInfo(device=w.device, pid=w.pid, **to_builtins(w.arena())) for w in node.fleet.living_workers()
    )
    return DaemonStatus(
        pid=os.getpid(),
        version=__version__,
        arena_bytes=sum(w.bytes for w in workers),
        arena_pinned_bytes=sum(w.pinned_bytes for w in workers),
        jobs=len(node.jobs.all()),
        workers=workers,
    )


def _worker(worker: WorkerPeer) -> WorkerInfo:
    return WorkerInfo(device=worker.device, pid=worker.pid, **to_builtins(worker.arena()))
