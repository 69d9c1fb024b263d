"""A restore that finds no room: the short device, the holders of its memory, and the ways to make room.

A driver counts handed-over memory for no process, so gcr's own books tell of jobs, and the device of the others.
Jobs of another user are told of as the device tells, by pid.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from gcr import units
from gcr.backend import Device
from gcr.daemon.fleet import Fleet
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.reports import rows
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, NoRoom
from gcr.job.states import State
from gcr.peers.control import ControlPeer
from gcr.processes import is_stopped

log = logging.getLogger("gcr.daemon")

Key = TypeVar("Key", str, int)
NAMED = 4  # holders in a message, the largest first


class Crowd(Struct, frozen=True):
    """One device. `jobs`: bytes by the names of jobs that run there; `others`: by pid, of processes in no job."""

    index: int
    device: Device
    label: str
    jobs: Mapping[str, int]
    others: Mapping[int, int]

    def said(self, missing: str) -> str:
        free = units.size(max(0, self.device.total_bytes - self.device.used_bytes))
        held = [f"job {name} {units.size(size)}" for name, size in _largest(self.jobs)]
        held += [f"process {pid}{_program(pid)} {units.size(size)}" for pid, size in _largest(self.others)]
        there = f"; there {'are' if len(held) > 1 else 'is'}: {', '.join(held[:NAMED])}" if held else ""
        return f"{missing} short on {self.label}, which has {free} of {units.size(self.device.total_bytes)} free{there}"


@contextmanager
def naming_holders(job: Job, jobs: Jobs, fleet: Fleet) -> Iterator[None]:
    """Wraps a restore: a refusal for want of device memory then names the jobs and processes that hold it."""
    try:
        yield
    except NoRoom as short:
        raise explained(short, job, jobs, fleet) from short


def explained(short: NoRoom, job: Job, jobs: Jobs, fleet: Fleet) -> NoRoom:
    """Returns the same refusal, with the names of holders if they are known."""
    if short.device is None or short.missing is None:
        return short
    try:
        ours = {worker.pid for worker in fleet.living_workers()}
        return _explained(short, short.missing, job, jobs, fleet.control(job.world), ours)
    except (GcrError, StopIteration) as error:  # the refusal matters more than its explanation
        log.info("job %s: no one says who has the device: %s", job.name, error)
        return short


def _explained(
    short: NoRoom, missing: int, job: Job, jobs: Jobs, control: ControlPeer, ours: Collection[int]
) -> NoRoom:
    devices = control.devices()
    crowd = _crowd(short.device, devices, job, jobs, control, ours)
    hint = ", or ".join([*_who_could_leave(crowd, job, missing), *_where_else(crowd, job, devices)])
    return NoRoom(
        crowd.said(units.size(missing)),
        missing=missing,
        device=short.device,
        state=short.state,
        hint=hint or "gcr devices; end what uses the device, and try again",
    )


def _crowd(
    uuid: str | None, devices: Sequence[Device], job: Job, jobs: Jobs, control: ControlPeer, ours: Collection[int]
) -> Crowd:
    index, device = next((at, one) for at, one in enumerate(devices) if one.uuid == uuid)
    alike = [other for other in jobs.all() if other is not job and other.owner == job.owner]
    running = {other.name: _bytes_on(other, device.uuid) for other in alike}
    known = {pid for other in (job, *alike) for pid in other.processes}.union(ours)
    others = {pid: size for pid, size in control.holders(device.uuid).items() if pid not in known and size}
    label = f"{job.world.backend}:{index}"
    return Crowd(index, device, label, {name: size for name, size in running.items() if size}, others)


def _bytes_on(job: Job, device: str) -> int:
    running = [process for process in job.living if process.state == State.RUNNING]
    for process in running if not job.busy else ():
        if not is_stopped(process.identity.pid):  # what it had a second ago may be little
            quietly("look", process.look)
    return sum(row.bytes for process in running for row in rows(process) if row.device == device)


def _who_could_leave(crowd: Crowd, job: Job, missing: int) -> list[str]:
    """Returns hints to suspend the smallest job that is large enough, or else the largest one."""
    if not crowd.jobs:
        return []
    enough = [(size, name) for name, size in crowd.jobs.items() if size >= missing]
    name = min(enough)[1] if enough else _largest(crowd.jobs)[0][0]
    swap = enough and crowd.device.uuid in _used(job)
    return [f"gcr checkpoint {name}", *([f"gcr swap {name} {job.name}"] if swap else [])]


def _where_else(crowd: Crowd, job: Job, devices: Sequence[Device]) -> list[str]:
    """Another device of the same model, with room for all that the job has on this one."""
    here, used = crowd.device.uuid, _used(job)
    needed = sum(process.suspension.bytes_by_device.get(here, 0) for process in job.living)
    for index, other in enumerate(devices):
        free = other.total_bytes - other.used_bytes
        if needed and other.uuid not in used and other.name == crowd.device.name and free > needed + (needed >> 4):
            return [f"gcr restore {job.name} --device {crowd.index}={index}"]
    return []


def _used(job: Job) -> set[str]:
    return {device for process in job.living for device in process.suspension.bytes_by_device}


def _largest(sizes: Mapping[Key, int]) -> list[tuple[Key, int]]:
    return sorted(sizes.items(), key=lambda each: -each[1])


def _program(pid: int) -> str:
    """` (python)`; nothing for a process that is gone, or in another space of pids."""
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""
