"""Handles that a process was given back, for the process itself: it frees some, or needs their descriptors."""

from collections.abc import Sequence

from gcr.daemon.coordinator import Coordinator
from gcr.engine.tidying import forget_freed
from gcr.errors import NoSuchJob


def released(node: Coordinator, pid: int, ids: Sequence[int]) -> None:
    """Drops handles that a process freed and the daemon holds as well; when this returns no keeper holds them."""
    target = node.jobs.targets.get(pid)
    if target:
        target.exports.released(ids)
        return
    if node.jobs.standing.released(pid, ids):
        return
    for job in node.jobs.all():
        if process := job.processes.get(pid):
            forget_freed(process, ids, node, job.world, job.keeper())


def descriptors(node: Coordinator, pid: int, ids: Sequence[int]) -> list[int]:
    """Returns descriptors, the caller's, of handles that a process got back and cannot export again.

    Raises NotKept, NoSuchJob.
    """
    for job in node.jobs.all():
        if pid in job.processes:
            return job.keeper().take(pid, ids)
    raise NoSuchJob(f"process {pid} is in no job")
