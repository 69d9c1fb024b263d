"""`gcr checkpoint` of a job that is suspended with resident memory: that memory is released, and nothing else changes.

Every byte of it is in host memory (worker/residence.py). A failure leaves the job suspended, and as it was.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.daemon import reports
from gcr.daemon.commands.resting import rests
from gcr.daemon.commands.transaction import target_of
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.daemon.residents import Resident, Residents, evict
from gcr.engine.count import DeviceCount, counted
from gcr.engine.node import Course
from gcr.engine.target import Target
from gcr.engine.work import Work
from gcr.job.states import State


def evicted(node: Coordinator, job: Job, course: Course) -> CheckpointReport | None:
    """Returns the report once the device itself counts nothing of the job; None where none of its memory is resident.

    Raises PeerGone, DriverError of a worker that does not count.
    """
    found = [one for one in node.residents.all() if any(one.hold == each.hold for each in job.begun)]
    if not found or not rests(job):
        return None
    targets = [_target(node, job, one, course.transaction) for one in found]
    for target, one in zip(targets, found, strict=True):
        target.books.unexplained[one.worker.device] = max(0, one.worker.counted(target.pid)[1])
    course.tell("evicting")
    for one in found:
        evict(one)
    count = _count(job, targets)
    count.wait()
    course.mark("vram_free")
    left = sum(count.after.values()) + resident_of(node, targets)
    report = reports.of_resting(job, sum(one.bytes for one in found), left)
    report = replace(report, vram_free_s=course.since_start("vram_free"), resident_bytes=resident_of(node, targets))
    job.results.tell(report, course.began)
    return report


def keep_spare(work: Work, residents: Residents) -> None:
    """Evicts resident memory where a device lacks room for drivers, and counts the rest of this checkpoint again."""
    residents.keep_spare()
    there = {(one.hold, one.worker.device): one.bytes for one in residents.all()}
    holds = {target.pid: target.hold for target in work.targets}
    left = {(pid, device): there.get((holds[pid], device), 0) for pid, device in work.count.resident}
    if left != work.count.resident:
        work.count.resident = {copy: size for copy, size in left.items() if size}
        work.count.wait()
        work.course.mark("vram_free")


def _count(job: Job, targets: Sequence[Target]) -> DeviceCount:
    """Returns the count of memory that is about to be released. Contexts stay where the data alone was suspended."""
    count = DeviceCount(targets, data_only=job.state is State.DATA_SUSPENDED)
    for target in targets if count.data_only else ():
        for device, size in target.bytes_by_device.items():
            count.before[target.pid, device] = size + counted(target, device)
    return count


def _target(node: Coordinator, job: Job, one: Resident, transaction: int) -> Target:
    """Returns the process on this device alone."""
    process = next(each for each in job.begun if each.hold == one.hold)
    target = target_of(node, job, process, transaction)
    target.books.suspended = {one.worker.device: one.bytes}
    return target


def resident_of(node: Coordinator, targets: Sequence[Target]) -> int:
    """Returns the bytes of these processes that are on their devices still."""
    holds = {target.hold for target in targets}
    return sum(one.bytes for one in node.residents.all() if one.hold in holds)
