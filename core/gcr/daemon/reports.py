"""Reports of checkpoints and restores, and the rows of `ps`, made from the daemon's books."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from msgspec import Struct
from msgspec.structs import asdict, replace

from gcr import units
from gcr.api.listings import ArenaReady, CutInfo, JobInfo, OnlyCopy, ProcessInfo
from gcr.api.reports import CheckpointReport, ProcessReport, RestoreReport
from gcr.daemon.images.shown import row
from gcr.daemon.jobs import Job
from gcr.daemon.labels import Labels
from gcr.daemon.shared_rows import NO_ROWS, Rows
from gcr.engine.admit import reason_name
from gcr.engine.copyout import unexportable
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import phases
from gcr.engine.restore import Restore
from gcr.engine.work import Work
from gcr.job.process import Process
from gcr.job.states import State, Strategy
from gcr.job.tracking import AllocationTable
from gcr.protocol.agentwire import DeviceRecord, StatusReply
from gcr.protocol.operations.worker import Moved

Resident = Mapping[tuple[str, str], int]
"""Bytes of resident memory, by device and hold."""
NOTHING_RESIDENT: Resident = MappingProxyType({})


class Amount(Struct, frozen=True):
    """Bytes that were moved, and the seconds of the slowest copy."""

    bytes: int
    seconds: float

    @classmethod
    def of(cls, copies: Collection[Moved]) -> Self:
        return cls(sum(one.bytes for one in copies), max((one.seconds for one in copies), default=0.0))

    @property
    def rate(self) -> float | None:
        """Returns bytes per second; None where no copy took any time."""
        return self.bytes / self.seconds if self.seconds else None


def of_checkpoint(job: Job, done: Work, link: float | None) -> CheckpointReport:
    course, moved, resident = done.course, Amount.of(done.drained.values()), sum(done.count.resident.values())
    copied = sum(one.copied for one in done.drained.values())
    return CheckpointReport(
        job=job.name,
        simulated=job.world.simulated,
        state=shown(job.state),
        strategy=_how(done),
        bytes=moved.bytes,
        bytes_copied=done.copied_live + copied,
        snapshot_bytes=done.snapshot_bytes,
        streamed=done.stream is not None,
        vram_free_s=None if resident else course.since_start("vram_free"),
        stop_s=course.between("stop", "vram_free"),
        drain_s=moved.seconds,
        drain_bytes_per_s=Amount(copied, moved.seconds).rate,
        control_s=None if done.options.data_only else course.between("handed_over", "frozen"),
        link_bytes_per_s=link,
        durable_s=None,
        vram_after_bytes=sum(done.count.after.values()) + resident,
        processes=tuple(at_the_cut(job, done)),
        resident_bytes=resident,
        phases_s=phases(course.marks, course.began),
    )


def at_the_cut(job: Job, done: Work) -> list[ProcessReport]:
    """Rows as the books were when they were closed: the program has changed what was looked at before."""
    tables = {target.pid: target.books.table for target in done.targets}
    found = ((process, tables.get(process.identity.pid)) for process in job.living)
    return [row for process, table in found for row in (of_table(process, table) if table else rows(process))]


def of_table(process: Process, table: AllocationTable) -> list[ProcessReport]:
    """Rows of a process with the allocations of `table`."""
    found = rows(process)
    devices = {each.device for each in table.allocations.values()} - {row.device for row in found}
    found += [_empty(process, uuid) for uuid in sorted(devices)]
    return [_counted(row, table) for row in found if row.device or not table.allocations]


def _counted(row: ProcessReport, table: AllocationTable) -> ProcessReport:
    held = table.of_device(row.device)
    covered = sum(each.spec.size for each in held)
    return replace(row, handles=len(held), covered_bytes=covered, bytes=covered + sum(row.uncovered.values()))


def _how(done: Work) -> str:
    copied_out = any(target.process.copied_out for target in done.targets)
    return "copyout" if copied_out else "live" if done.options.live else "handoff"


def of_glance(job: Job, done: Work, link: float | None) -> CheckpointReport:
    """Returns the report of a job that was left running: nothing is free."""
    marks = done.course.marks
    marks["vram_free"] = marks["running"]  # until then it stood still
    found = of_checkpoint(job, done, link)
    passed = {name: at for name, at in found.phases_s.items() if name != "vram_free"}
    return replace(found, vram_free_s=None, control_s=None, vram_after_bytes=None, phases_s=passed)


def of_resting(job: Job, nbytes: int, left: int | None) -> CheckpointReport:
    """Returns the report of a job that was suspended before: no byte was moved. `left`: bytes that devices count."""
    copied_out = any(process.copied_out for process in job.living)
    return CheckpointReport(
        job=job.name,
        simulated=job.world.simulated,
        state=shown(job.state),
        strategy="copyout" if copied_out else "handoff",
        bytes=nbytes,
        bytes_copied=0,
        snapshot_bytes=0,
        streamed=False,
        vram_free_s=0.0,
        stop_s=0.0,
        drain_s=0.0,
        drain_bytes_per_s=None,
        control_s=None,
        link_bytes_per_s=None,
        durable_s=None,
        vram_after_bytes=left,
        processes=tuple(row for process in job.living for row in rows(process)),
    )


def of_context(job: Job, done: Work, resident: int) -> CheckpointReport:
    """Returns the report of a checkpoint that saved control state alone: the data had left before."""
    course = done.course
    nbytes = sum(sum(target.bytes_by_device.values()) for target in done.targets)
    return replace(
        of_resting(job, nbytes, sum(done.count.after.values()) + resident),
        vram_free_s=None if resident else course.since_start("vram_free"),
        control_s=course.between("prepared", "frozen"),
        resident_bytes=resident,
        phases_s=phases(course.marks, course.began),
    )


def of_driver_checkpoint(job: Job, done: DriverSwap) -> CheckpointReport:
    course = done.course
    moved = Amount(sum(done.before.values()), course.between("stop", "frozen"))
    return CheckpointReport(
        job=job.name,
        simulated=job.world.simulated,
        state=shown(job.state),
        strategy="driver",
        bytes=moved.bytes,
        bytes_copied=moved.bytes,
        snapshot_bytes=0,
        streamed=False,
        vram_free_s=course.since_start("vram_free"),
        stop_s=course.between("stop", "vram_free"),
        drain_s=moved.seconds,
        drain_bytes_per_s=moved.rate,
        control_s=moved.seconds,
        link_bytes_per_s=None,
        durable_s=None,
        vram_after_bytes=sum(done.after.values()),
        processes=tuple(row for process in job.living for row in rows(process)),
    )


def of_restore(job: Job, done: Restore, link: float | None, moved: Mapping[str, str]) -> RestoreReport:
    """`moved`: devices by UUID, those that the job left and those that it came back on."""
    course, refilled, resident = done.course, Amount.of(done.refilled.values()), sum(done.resident.values())
    return replace(
        _refilled(job, refilled, moved),
        bytes=refilled.bytes + resident,
        resident_bytes=resident,
        control_s=None if done.data_only else course.marks.get("control_s"),
        link_bytes_per_s=link,
        total_s=course.since_start("running"),
        cold=done.cold,
        streamed=done.streamed,
        phases_s=phases({k: v for k, v in course.marks.items() if k != "control_s"}, course.began),
    )


def of_driver_restore(job: Job, done: DriverSwap, moved: Mapping[str, str]) -> RestoreReport:
    """`moved`: as of `of_restore`."""
    nbytes = sum(done.process.suspension.bytes_by_device.values())
    return _refilled(job, Amount(nbytes, done.course.since_start("running")), moved)


def _refilled(job: Job, refilled: Amount, moved: Mapping[str, str]) -> RestoreReport:
    """Returns the report of a restore in one step: the refill takes all of its time."""
    return RestoreReport(
        job=job.name,
        simulated=job.world.simulated,
        state=shown(job.state),
        bytes=refilled.bytes,
        refill_s=refilled.seconds,
        refill_bytes_per_s=refilled.rate,
        control_s=refilled.seconds,
        link_bytes_per_s=None,
        total_s=refilled.seconds,
        cold=False,
        streamed=False,
        moved=moved,
    )


def of_job(
    job: Job,
    labels: Labels,
    arena: ArenaReady | None,
    shared: Rows = NO_ROWS,
    resident: Resident = NOTHING_RESIDENT,
    cut: CutInfo | None = None,
) -> JobInfo:
    return JobInfo(
        job=job.name,
        pid=job.program.pid,
        state=shown(job.state),
        started=units.moment(job.program.started),
        simulated=job.world.simulated,
        backend=job.world.backend,
        command=job.program.argv,
        image=row(job.results.imaging) if job.results.imaging else None,
        images=tuple(row(each) for each in job.results.images),
        only_in=_only_in(job),
        processes=tuple(row for process in _there(job) for row in _infos(process, job, labels, shared, resident)),
        arena=arena,
        changing=job.turn.is_awaited,
        cut=cut,
    )


def _there(job: Job) -> Sequence[Process]:
    """Returns the processes of a job. One that ended on its way back is none, also before the daemon has noticed.

    A migration looks here before it gives the job away. Elsewhere a process may be away, and come back from an image.
    """
    return [process for process in job.living if process.state is not State.RESTORING or not process.ended]


def _infos(process: Process, job: Job, labels: Labels, shared: Rows, resident: Resident) -> list[ProcessInfo]:
    there = {row.device: resident.get((row.device, process.hold), 0) for row in rows(process)}
    found = [
        ProcessInfo(**asdict(row), label=labels.of(job.world, row.device), resident_bytes=there[row.device])
        for row in rows(process)
    ]
    return [replace(found[0], shared=shared.get(process.identity.pid, ())), *found[1:]]


def _only_in(job: Job) -> OnlyCopy | None:
    decided = job.decision.image if job.decision and job.state != State.RUNNING else None
    kept = job.supervision.parked or decided
    return OnlyCopy(image=kept.name, store=kept.store) if kept and kept.name else None


def rows(process: Process) -> list[ProcessReport]:
    """One row a process and device; a process that has allocated nothing yet has one without a device."""
    status = process.seen.status
    if status is None:
        devices = process.suspension.bytes_by_device or {"": 0}
        return [replace(_empty(process, uuid), bytes=size) for uuid, size in devices.items()]
    found = [_of_device(process, device) for device in used(status.devices)]
    return [_with_what_has_no_device(row, status) if row is found[0] else row for row in found]


def _of_device(process: Process, device: DeviceRecord) -> ProcessReport:
    row = _empty(process, process.seen.uuids[device.ordinal])
    return replace(row, bytes=device.covered_bytes, covered_bytes=device.covered_bytes, handles=device.handles)


def _with_what_has_no_device(row: ProcessReport, status: StatusReply) -> ProcessReport:
    """Returns the row with the counts that a process has of all its devices together."""
    uncovered = {reason_name(u.reason): u.bytes for u in status.uncovered if u.count}
    return replace(
        row,
        bytes=row.bytes + sum(uncovered.values()),
        uncovered=uncovered,
        pinned_host_bytes=status.status.pinned_host_bytes,
        contexts=status.status.contexts,
    )


def _empty(process: Process, device: str) -> ProcessReport:
    """The row of a device where the process has nothing yet."""
    return ProcessReport(
        pid=process.identity.pid,
        state=shown(process.state),
        strategy=strategy(process),
        device=device,
        bytes=0,
        covered_bytes=0,
        uncovered={},
        handles=0,
        pinned_host_bytes=0,
        contexts=0,
    )


def used(devices: Sequence[DeviceRecord]) -> Sequence[DeviceRecord]:
    """Returns the devices on which the process has allocated; without any the first in the driver's order."""
    return [device for device in devices if device.handles] or devices[:1]


def strategy(process: Process) -> str:
    """Returns the strategy by which its data leaves, or would."""
    flags = process.seen.status.status.flags if process.seen.status else 0
    return Strategy.COPYOUT if unexportable(flags) else process.strategy


def shown(state: State) -> str:
    """docs/contract.md §2 has no name for frozen and drained at once: it is on its way to `suspended`."""
    return State.DRAINED.value if state == State.FROZEN_DRAINED else state.value
