"""`gcr top`: devices, jobs and their last swaps, live."""

import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
from msgspec import Struct, field

from gcr.api.jobevents import CheckpointDone, RestoreDone
from gcr.api.listings import DeviceInfo, DeviceList, JobInfo
from gcr.api.requests import DevicesRequest
from gcr.cli import text, toptable
from gcr.cli.commands.devices import present
from gcr.cli.commands.ps import jobs_of
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.errors import DaemonUnavailable, Interrupted, NotAllKnown
from gcr.rendezvous.client import Client
from gcr.rendezvous.following import GONE, Reader

INTERVAL_S = 1.0

Swap = CheckpointDone | RestoreDone


class Looked(Struct, frozen=True):
    """A look at the machine. `jobs_bytes`: bytes of jobs that run, by device; `swaps`: the last one of each job."""

    devices: Sequence[DeviceInfo]
    jobs_bytes: Mapping[str, int]
    jobs: Sequence[JobInfo]
    swaps: Mapping[str, Swap]

    def to_json(self) -> dict[str, Any]:
        rows = [{**device.to_json(), "jobs_bytes": self.jobs_bytes[device.uuid]} for device in self.devices]
        jobs = [{**job.to_json(), "last_swap": _swap(self.swaps.get(job.job))} for job in self.jobs]
        return {"devices": rows, "jobs": jobs}

    def render(self, width: int | None) -> str:
        """Returns the tables of devices and of jobs, an empty line apart."""
        devices = [(device, self.jobs_bytes[device.uuid]) for device in self.devices]
        jobs = [(job, self.swaps.get(job.job)) for job in self.jobs]
        return f"{toptable.of_devices(devices, width)}\n\n{toptable.of_jobs(jobs, width)}"


def _swap(event: Swap | None) -> dict[str, Any] | None:
    return event.to_json() if event else None


def parse_interval(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuses nan, which lies in every range of click's."""
    if math.isnan(value):
        raise click.BadParameter("nan is no time", ctx, param)
    return value


@click.command("top", epilog=examples("gcr top", "gcr top --interval 0.2", "gcr top --once", "gcr --json top"))
@click.option("--once", is_flag=True, help="Show it once; so it is wherever stdout is no terminal.")
@click.option(
    "--interval",
    metavar="S",
    type=click.FloatRange(0.05, 3600.0),
    callback=parse_interval,
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between two looks.",
)
@common_options
@click.pass_obj
def command(options: Options, once: bool, interval: float) -> int:
    """Show devices, how much of each is in use and by which share of it jobs, and the jobs, until Ctrl-C.

    USED is the device's own count. JOBS is the data of jobs that run there, by gcr's books. LAST SWAP is the last
    checkpoint or restore of a job under this daemon. TOOK is the time from the request to its end.
    """
    top = Top(options)
    if options.json:
        print_json(success("top", top.look().to_json()))
    elif once or not sys.stdout.isatty():
        print_text(top.look().render(text.width()))
    else:
        return _watch(top, interval)
    return 0


class Top(Struct):
    """Looks at the same machine again and again."""

    options: Options
    _reader: Reader = field(default_factory=Reader)
    _swaps: dict[str, Swap] = field(default_factory=dict)

    def look(self) -> Looked:
        """Raises GONE where a daemon that has jobs does not answer; NotAllKnown."""
        jobs, seen = jobs_of(self.options), self._ask()
        known = {device.uuid for device in seen}
        rows = [*seen, *(device for device in present(self.options.backend) if device.uuid not in known)]
        names = {job.job for job in jobs}
        self._swaps = {name: swap for name, swap in self._swaps.items() if name in names}
        return Looked(rows, _held(jobs), jobs, self._swaps)

    def _ask(self) -> list[DeviceInfo]:
        """Returns the devices that jobs see, and notes their swaps. Without a daemon there is neither.

        Simulated devices are seen from inside only, so the daemon is asked.
        """
        try:
            with Client.connect(autostart=False) as client:
                for event in self._reader.rest(client):
                    if isinstance(event, CheckpointDone | RestoreDone):
                        self._swaps[event.job] = event
                rows = client.ask(DevicesRequest(), DeviceList, timeout=30.0).devices
        except DaemonUnavailable:
            return []
        return [row for row in rows if self.options.backend in (None, row.backend)]


def _held(jobs: Sequence[JobInfo]) -> Counter[str]:
    """Bytes by device, of processes that run."""
    found = Counter[str]()
    for job in jobs:
        for process in job.processes:
            found[process.device] += process.bytes if process.state == "running" else 0
    return found


def _watch(top: Top, interval: float) -> int:
    """Shows it until a signal ends it; the terminal is then as before. A daemon that has ended is waited for."""
    from rich.live import Live
    from rich.text import Text

    signal.signal(signal.SIGTERM, _end)
    shown = ""
    try:
        with Live(auto_refresh=False, screen=True) as live:
            while True:
                try:
                    shown = now = top.look().render(text.width())
                except (*GONE, NotAllKnown) as error:
                    now = f"{shown}\n\nas it was: {error}".lstrip()
                live.update(Text(now), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return Interrupted.exit


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
