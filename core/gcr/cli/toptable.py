"""The tables of `gcr top`: a line a device, and a line a job with its last swap."""

from collections.abc import Sequence

from gcr import units
from gcr.api.jobevents import CheckpointDone, RestoreDone
from gcr.api.listings import DeviceInfo, JobInfo
from gcr.cli import text

DEVICES = ("DEVICE", "NAME", "USED", "TOTAL", "", "JOBS", "")
JOBS = ("JOB", "STATE", "PROCESSES", "MEMORY", "AGE", "LAST SWAP", "TOOK", "MOVED", "RATE", "COMMAND")
NONE = ("-",) * 4  # for a job without a swap


def of_devices(rows: Sequence[tuple[DeviceInfo, int]], width: int | None) -> str:
    """`rows`: each device with the bytes of jobs that run there. `width`: columns of a terminal, None for a pipe."""
    return _table(DEVICES, [_device(*row) for row in rows], width) if rows else "no devices"


def of_jobs(rows: Sequence[tuple[JobInfo, CheckpointDone | RestoreDone | None]], width: int | None) -> str:
    """`rows`: each job with its last swap."""
    return _table(JOBS, [_job(*row) for row in rows], width) if rows else "no jobs"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    return "\n".join(text.cut(line, width) for line in text.table(head, rows).splitlines())


def _device(device: DeviceInfo, jobs: int) -> tuple[str, ...]:
    used, total = device.used_bytes, device.total_bytes
    return (
        device.label,
        text.printable(device.name),
        units.size(used),
        units.size(total),
        text.percent(used / total) if total else "-",
        units.size(jobs),
        "SIMULATED" * device.simulated,
    )


def _job(job: JobInfo, swap: CheckpointDone | RestoreDone | None) -> tuple[str, ...]:
    return (
        job.job,
        job.state,
        str(len({process.pid for process in job.processes})),
        units.size(job.bytes),
        units.age(units.since(job.started)),
        *(_swap(swap) if swap else NONE),
        " ".join(["SIMULATED"] * job.simulated + [text.printable(" ".join(job.command)) or "-"]),
    )


def _swap(swap: CheckpointDone | RestoreDone) -> tuple[str, ...]:
    return (
        f"{_way(swap)} {units.age(units.since(swap.time))} ago",
        text.seconds(swap.took_s),
        units.size(swap.bytes),
        text.rate(swap.bytes_per_s) if swap.bytes_per_s else "-",
    )


def _way(swap: CheckpointDone | RestoreDone) -> str:
    """Returns `copied` for a checkpoint after which the job ran on."""
    if isinstance(swap, RestoreDone):
        return "in"
    return "copied" if swap.state == "running" else "out"
