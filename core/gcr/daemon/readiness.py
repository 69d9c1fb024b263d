"""The readiness of a job for a warm checkpoint: the host memory that workers have filled and pinned for it."""

from collections.abc import Mapping, Sequence
from functools import partial

from gcr.api.listings import ArenaReady
from gcr.daemon.jobs import Job
from gcr.engine.side_by_side import side_by_side
from gcr.engine.tidying import quietly
from gcr.job.states import State, Strategy
from gcr.peers.worker import WorkerPeer

Ready = Mapping[tuple[str, str], int]
"""Bytes that are filled and pinned, by device and hold."""


def ready_bytes(workers: Sequence[WorkerPeer]) -> Ready:
    """Returns the ready bytes of the workers that answer."""
    found: dict[tuple[str, str], int] = {}

    def ask(worker: WorkerPeer) -> None:
        found.update({(worker.device, hold): size for hold, size in worker.prepared().items()})

    side_by_side(partial(quietly, "prepared", partial(ask, worker)) for worker in workers)
    return found


def arena_of(job: Job, ready: Ready) -> ArenaReady | None:
    """Bytes that a checkpoint needs, and that are ready; None of a job that has none to take off its devices."""
    wanted = there = 0
    for process in job.living:
        if process.state != State.RUNNING or process.strategy == Strategy.DRIVER or process.seen.status is None:
            continue
        for device in process.seen.status.devices:
            wanted += device.covered_bytes
            there += min(device.covered_bytes, ready.get((process.seen.uuids[device.ordinal], process.hold), 0))
    return ArenaReady(wanted_bytes=wanted, ready_bytes=there) if wanted else None
