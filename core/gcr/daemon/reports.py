"""Reports of checkpoints, restores and `ps`: the fields of docs/contract.md §4."""

from collections.abc import Mapping, Sequence
from typing import Any

from gcr import units
from gcr.daemon.jobs import Job
from gcr.daemon.labels import Labels
from gcr.engine.admit import reason_name
from gcr.engine.copyout import unexportable
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import phases
from gcr.engine.restore import Restore
from gcr.engine.work import Work
from gcr.job.process import Process
from gcr.job.states import State, Strategy
from gcr.job.tracking import AllocationTable
from gcr.protocol.agentwire import DeviceRecord


def of_checkpoint(job: Job, done: Work, link: float | None) -> dict[str, Any]:
    course = done.course
    drained = list(done.drained.values())
    size = sum(one.bytes for one in drained)
    seconds = max((one.seconds for one in drained), default=0.0)
    return {
        "job": job.name,
        "simulated": job.world.simulated,
        "state": shown(job.state),
        "strategy": _how(done),
        "bytes": size,
        "bytes_copied": done.copied_live + sum(one.copied for one in drained),
        "snapshot_bytes": done.snapshot_bytes,
        "streamed": done.stream is not None,
        "vram_free_s": course.since_start("vram_free"),
        "stop_s": course.between("stop", "vram_free"),
        "drain_s": seconds,
        "drain_bytes_per_s": size / seconds if seconds else None,
        "control_s": None if done.options.data_only else course.between("handed_over", "frozen"),
        "link_bytes_per_s": link,
        "durable_s": None,
        "vram_after_bytes": sum(done.count.after.values()),
        "processes": at_the_cut(job, done),
        "phases_s": phases(course.marks, course.began),
    }


def at_the_cut(job: Job, done: Work) -> list[dict[str, Any]]:
    """Rows as the books were when they were closed: the program has changed what was looked at before."""
    tables = {target.pid: target.books.table for target in done.targets}
    found = ((process, tables.get(process.identity.pid)) for process in job.living)
    return [row for process, table in found for row in (of_table(process, table) if table else rows(process))]


def of_table(process: Process, table: AllocationTable) -> list[dict[str, Any]]:
    """Rows of a process with the allocations of `table`."""
    found = rows(process)
    devices = {each.device for each in table.allocations.values()} - {row["device"] for row in found}
    found += [_empty(process, uuid) for uuid in sorted(devices)]
    return [{**row, **_counted(row, table)} for row in found if row["device"] or not table.allocations]


def _counted(row: Mapping[str, Any], table: AllocationTable) -> dict[str, int]:
    held = table.of_device(row["device"])
    covered = sum(each.spec.size for each in held)
    return {"handles": len(held), "covered_bytes": covered, "bytes": covered + sum(row["uncovered"].values())}


def _how(done: Work) -> str:
    copied_out = any(target.process.copied_out for target in done.targets)
    return "copyout" if copied_out else "live" if done.options.live else "handoff"


def of_glance(job: Job, done: Work, link: float | None) -> dict[str, Any]:
    """Returns the report of a job that was left running: nothing is free."""
    marks = done.course.marks
    marks["vram_free"] = marks["running"]  # until then it stood still
    found = of_checkpoint(job, done, link)
    found["phases_s"].pop("vram_free")
    return {**found, "vram_free_s": None, "control_s": None, "vram_after_bytes": None}


def of_driver_checkpoint(job: Job, done: DriverSwap) -> dict[str, Any]:
    course = done.course
    size = sum(done.before.values())
    control = course.between("stop", "frozen")
    return {
        "job": job.name,
        "simulated": job.world.simulated,
        "state": shown(job.state),
        "strategy": "driver",
        "bytes": size,
        "bytes_copied": size,
        "snapshot_bytes": 0,
        "streamed": False,
        "vram_free_s": course.since_start("vram_free"),
        "stop_s": course.between("stop", "vram_free"),
        "drain_s": control,
        "drain_bytes_per_s": size / control if control else None,
        "control_s": control,
        "link_bytes_per_s": None,
        "durable_s": None,
        "vram_after_bytes": sum(done.after.values()),
        "processes": [row for process in job.living for row in rows(process)],
    }


def of_restore(job: Job, done: Restore, link: float | None) -> dict[str, Any]:
    course = done.course
    refilled = list(done.refilled.values())
    size = sum(one.bytes for one in refilled)
    seconds = max((one.seconds for one in refilled), default=0.0)
    return {
        "job": job.name,
        "simulated": job.world.simulated,
        "state": shown(job.state),
        "bytes": size,
        "refill_s": seconds,
        "refill_bytes_per_s": size / seconds if seconds else None,
        "control_s": None if done.data_only else course.marks.get("control_s"),
        "link_bytes_per_s": link,
        "total_s": course.since_start("running"),
        "cold": done.cold,
        "streamed": done.streamed,
        "phases_s": phases({k: v for k, v in course.marks.items() if k != "control_s"}, course.began),
    }


def of_driver_restore(job: Job, done: DriverSwap) -> dict[str, Any]:
    total = done.course.since_start("running")
    size = sum(done.process.suspension.bytes_by_device.values())
    rate = size / total if total else None
    return {
        "job": job.name,
        "simulated": job.world.simulated,
        "state": shown(job.state),
        "bytes": size,
        "refill_s": total,
        "refill_bytes_per_s": rate,
        "control_s": total,
        "link_bytes_per_s": None,
        "total_s": total,
        "cold": False,
        "streamed": False,
    }


def of_job(job: Job, labels: Labels) -> dict[str, Any]:
    found = [row for process in job.living for row in rows(process)]
    return {
        "job": job.name,
        "pid": job.program.pid,
        "state": shown(job.state),
        "started": units.moment(job.program.started),
        "simulated": job.world.simulated,
        "backend": job.world.backend,
        "command": list(job.program.argv),
        "image": job.results.imaging.row() if job.results.imaging else None,
        "images": [each.row() for each in job.results.images],
        "only_in": _only_in(job),
        "processes": [{**row, "label": labels.of(job.world, row["device"])} for row in found],
    }


def _only_in(job: Job) -> dict[str, Any] | None:
    kept = job.decision.image if job.decision and job.state != State.RUNNING else None
    return {"image": kept.name, "store": kept.store} if kept and kept.name else None


def rows(process: Process) -> list[dict[str, Any]]:
    """One row a process and device; a process that has allocated nothing yet has one without a device."""
    status = process.seen.status
    if status is None:
        devices = process.suspension.bytes_by_device or {"": 0}
        return [{**_empty(process, uuid), "bytes": size} for uuid, size in devices.items()]
    uncovered = {reason_name(u.reason): u.bytes for u in status.uncovered if u.count}
    found = []
    for index, device in enumerate(used(status.devices)):
        extra = uncovered if index == 0 else {}
        found.append(
            {
                **_empty(process, process.seen.uuids[device.ordinal]),
                "bytes": device.covered_bytes + sum(extra.values()),
                "covered_bytes": device.covered_bytes,
                "uncovered": extra,
                "handles": device.handles,
                "pinned_host_bytes": status.status.pinned_host_bytes if index == 0 else 0,
                "contexts": status.status.contexts if index == 0 else 0,
            }
        )
    return found


def _empty(process: Process, device: str) -> dict[str, Any]:
    """The row of a device where the process has nothing yet."""
    return {
        "pid": process.identity.pid,
        "state": shown(process.state),
        "strategy": strategy(process),
        "device": device,
        "bytes": 0,
        "covered_bytes": 0,
        "uncovered": {},
        "handles": 0,
        "pinned_host_bytes": 0,
        "contexts": 0,
    }


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
