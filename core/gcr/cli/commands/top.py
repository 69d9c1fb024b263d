"""`gcr top`: devices and jobs, live."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gcr import units
from gcr.cli import jobtable, text
from gcr.cli.commands.devices import present
from gcr.cli.commands.ps import jobs_of
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.errors import DaemonUnavailable
from gcr.rendezvous.client import Client

INTERVAL_S = 1.0
HEAD = ("DEVICE", "NAME", "USED", "TOTAL", "", "JOBS", "")

Rows = list[dict[str, Any]]


@click.command("top", epilog=examples("gcr top", "gcr top --once", "gcr --json top"))
@click.option("--once", is_flag=True, help="Show it once; so it is wherever stdout is no terminal.")
@common_options
@click.pass_obj
def command(options: Options, once: bool) -> None:
    """Show devices, how much of each is in use and by which share of it jobs, and the jobs, every second until Ctrl-C.

    USED is the device's own count. JOBS is the data of jobs that run there, by gcr's books.
    """
    if options.json:
        print_json(success("top", _looked(options)))
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


def _looked(options: Options) -> dict[str, Any]:
    jobs = jobs_of(options)
    held = _held(jobs)
    seen = _seen_by_jobs(options)
    known = {device["uuid"] for device in seen}
    rows = [*seen, *(device for device in present(options.backend) if device["uuid"] not in known)]
    return {"devices": [{**device, "jobs_bytes": held[device["uuid"]]} for device in rows], "jobs": jobs}


def _seen_by_jobs(options: Options) -> Rows:
    """Simulated ones are seen from inside only, so the daemon is asked; where none runs there is no job."""
    try:
        with Client.connect(autostart=False) as client:
            rows: Rows = client.request("devices", timeout=30.0)["devices"]
    except DaemonUnavailable:
        return []
    return [row for row in rows if options.backend in (None, row["backend"])]


def _held(jobs: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Bytes by device, of processes that run."""
    found = Counter[str]()
    for job in jobs:
        for process in job["processes"]:
            found[process["device"]] += process["bytes"] if process["state"] == "running" else 0
    return found


def render(looked: Mapping[str, Any]) -> str:
    """Devices, an empty line, and the table of `gcr ps`."""
    width, devices, jobs = text.width(), looked["devices"], looked["jobs"]
    above = text.table(HEAD, [_cells(device) for device in devices]) if devices else "no devices"
    lines = [text.cut(line, width) for line in above.splitlines()]
    return "\n".join([*lines, "", jobtable.table(jobs, width) if jobs else "no jobs"])


def _cells(device: Mapping[str, Any]) -> tuple[str, ...]:
    used, total, jobs = device["used_bytes"], device["total_bytes"], device["jobs_bytes"]
    return (
        f"{device['backend']}:{device['index']}",
        text.printable(device["name"]),
        units.size(used),
        units.size(total),
        text.percent(used / total) if total else "-",
        units.size(jobs),
        "SIMULATED" * device["simulated"],
    )
