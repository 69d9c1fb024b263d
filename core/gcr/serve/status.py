"""The state of everything on one page: models, jobs, devices and the last swaps. Its JSON: docs/serve.md."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct, to_builtins

from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent, DoneEvent, FailedEvent
from gcr.api.listings import DeviceInfo, DeviceList, JobInfo
from gcr.api.requests import DevicesRequest
from gcr.errors import GcrError
from gcr.rendezvous.client import CONNECT_TIMEOUT, Client
from gcr.serve.metrics import Row
from gcr.version import __version__

FRESH_S = 0.9  # a look at the jobs is not repeated within
PATIENCE_S = 2.0  # what is not known by then is left out
MOST_SWAPS = 500


class Job(Struct, frozen=True, kw_only=True):
    """A job, all its processes together, without its command, which may hold secrets. Sizes in bytes."""

    job: str
    pid: int | None
    state: str
    simulated: bool
    bytes: int
    resident_bytes: int
    devices: tuple[str, ...]


class Device(Struct, frozen=True, kw_only=True):
    """A device, with the bytes in use by its own count."""

    label: str
    name: str
    total_bytes: int
    used_bytes: int
    simulated: bool


class Swap(Struct, frozen=True, kw_only=True):
    """The end of a checkpoint or a restore. `error`: its code, None if it was done."""

    time: str
    job: str
    direction: str
    took_s: float
    bytes: int = 0
    link_share: float | None = None
    error: str | None = None


class Seen(Struct, frozen=True):
    """Jobs and devices, as the daemon told of them."""

    jobs: tuple[Job, ...]
    devices: tuple[Device, ...]


def seen_by_daemon() -> Seen:
    """Starts no daemon: raises DaemonUnavailable, and as `Client.request`."""
    with Client.connect(autostart=False, timeout=CONNECT_TIMEOUT) as client:
        jobs = client.jobs().jobs
        devices = client.ask(DevicesRequest(), DeviceList, timeout=30.0).devices
    return Seen(tuple(map(_job, jobs)), tuple(map(_device, devices)))


class Status:
    """Belongs to one event loop, but for `note`. The daemon is asked only when a page is."""

    def __init__(self, rows: Callable[[], Iterable[Row]], ask: Callable[[], Seen]) -> None:
        self._rows, self._ask = rows, ask
        self._swaps: deque[Swap] = deque(maxlen=MOST_SWAPS)
        self._seen: Seen | None = None
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def note(self, event: AnyEvent) -> None:
        """Takes an event of the daemon, from any thread."""
        if isinstance(event, DoneEvent | FailedEvent):
            self._swaps.append(_swap(event))

    async def body(self) -> dict[str, Any]:
        """Returns the JSON. `jobs` and `devices` are None while they are not known."""
        if self._looking is None and time.monotonic() - self._looked > FRESH_S:
            self._looking = asyncio.create_task(self._look())
        if self._looking:
            await asyncio.wait({self._looking}, timeout=PATIENCE_S)
        seen = None if self._looking else self._seen
        return {
            "time": jobevents.now(),
            "version": __version__,
            "models": to_builtins(list(self._rows())),
            "jobs": to_builtins(seen.jobs) if seen else None,
            "devices": to_builtins(seen.devices) if seen else None,
            "swaps": to_builtins(list(self._swaps)),
        }

    async def _look(self) -> None:
        self._seen = None
        try:
            with suppress(GcrError, OSError):
                self._seen = await asyncio.to_thread(self._ask)
        finally:
            self._looked, self._looking = time.monotonic(), None


def _job(job: JobInfo) -> Job:
    labels = dict.fromkeys(each.label for each in job.processes if each.label)
    return Job(
        job=job.job,
        pid=job.pid,
        state=job.state,
        simulated=job.simulated,
        bytes=job.bytes,
        resident_bytes=sum(each.resident_bytes for each in job.processes),
        devices=tuple(labels),
    )


def _device(device: DeviceInfo) -> Device:
    return Device(
        label=device.label,
        name=device.name,
        total_bytes=device.total_bytes,
        used_bytes=device.used_bytes,
        simulated=device.simulated,
    )


def _swap(event: DoneEvent | FailedEvent) -> Swap:
    direction = jobevents.command_of(event)
    if isinstance(event, FailedEvent):
        return Swap(time=event.time, job=event.job, direction=direction, took_s=event.took_s, error=event.code)
    return Swap(
        time=event.time,
        job=event.job,
        direction=direction,
        took_s=event.took_s,
        bytes=event.bytes,
        link_share=event.link_share,
    )
