"""`gcr top`: devices and jobs, live."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from msgspec import Struct

from gcr import units
from gcr.api.listings import DeviceInfo, DeviceList, JobInfo
from gcr.api.requests import DevicesRequest
from gcr.cli import jobtable, text
from gcr.cli.commands.devices import present
from gcr.cli.commands.ps import jobs_of
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.errors import DaemonUnavailable
from gcr.rendezvous.client import Client

INTERVAL_S = 1.0
HEAD = ("DEVICE", "NAME", "USED", "TOTAL", "", "JOBS", "")


class Looked(Struct, frozen=True):
    """`jobs_bytes`: bytes of jobs that run, by device."""

    devices: Sequence[DeviceInfo]
    jobs_bytes: Mapping[str, int]
    jobs: Sequence[JobInfo]

    def to_json(self) -> dict[str, Any]:
        rows = [{**device.to_json(), "jobs_bytes": self.jobs_bytes[device.uuid]} for device in self.devices]
        return {"devices": rows, "jobs": [job.to_json() for job in self.jobs]}


@click.command("top", epilog=examples("gcr top", "gcr top --once", "gcr --json top"))
@click.option("--once", is_flag=True, help="Show it once; so it is wherever stdout is no terminal.")
@common_options
@click.pass_obj
def command(options: Options, once: bool) -> None:
    """Show devices, how much of each is in use and by which share of it jobs, and the jobs, every second until Ctrl-C.

    USED is the device's own count. JOBS is the data of jobs that run there, by gcr's books.
    """
    if options.json:
        print_json(success("top", _looked(options).to_json()))
    elif once or not sys.stdout.isatty():
        print_text(render(_looked(options)))
    else:
        _watch(options)


def _watch(options: Options) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            live.update(Text(render(_looked(options))), refresh=True)
            time.sleep(INTERVAL_S)


def _looked(options: Options) -> Looked:
    jobs = jobs_of(options)
    seen = _seen_by_jobs(options)
    known = {device.uuid for device in seen}
    rows = [*seen, *(device for device in present(options.backend) if device.uuid not in known)]
    return Looked(rows, _held(jobs), jobs)


def _seen_by_jobs(options: Options) -> list[DeviceInfo]:
    """Simulated ones are seen from inside only, so the daemon is asked; where none runs there is no job."""
    try:
        with Client.connect(autostart=False) as client:
            rows = client.ask(DevicesRequest(), DeviceList, timeout=30.0).devices
    except DaemonUnavailable:
        return []
    return [row for row in rows if options.backend in (None, row.backend)]


def _held(jobs: Sequence[JobInfo]) -> Counter[str]:
    """Bytes by device, of processes that run."""
    found = Counter[str]()
    for job in jobs:
        for process in job.processes:
            found[process.device] += process.bytes if process.state == "running" else 0
    return found


def render(looked: Looked) -> str:
    """Devices, an empty line, and the table of `gcr ps`."""
    width, devices, jobs = text.width(), looked.devices, looked.jobs
    rows = [_cells(device, looked.jobs_bytes[device.uuid]) for device in devices]
    above = text.table(HEAD, rows) if rows else "no devices"
    lines = [text.cut(line, width) for line in above.splitlines()]
    return "\n".join([*lines, "", jobtable.table(jobs, width) if jobs else "no jobs"])


def _cells(device: DeviceInfo, jobs: int) -> tuple[str, ...]:
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
