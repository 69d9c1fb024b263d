"""`gcr ps`: jobs and their processes."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from gcr import units
from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.client import Client, daemon_runs
from gcr.errors import UsageError

INTERVAL_S = 1.0

_HEAD = ("JOB", "PID", "STATE", "DEVICE", "MEMORY", "COVERED", "NOTES")


@click.command("ps", epilog=examples("gcr ps", "gcr ps --watch", "gcr ps --json"))
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@common_options
@click.pass_obj
def command(options: Options, watch: bool) -> None:
    """Show jobs and their processes: device, memory, the share of it that gcr moves itself, state."""
    if watch and options.json:
        raise UsageError("--watch draws for people and --json prints one object: choose one")
    if watch:
        _watch(options)
        return
    jobs = _jobs(options)
    if options.json:
        print_json(success("ps", {"jobs": jobs}))
    else:
        print_text(render(jobs))


def _jobs(options: Options) -> list[dict[str, Any]]:
    """Where no daemon runs and none died, there is no job; looking starts none."""
    if not daemon_runs():
        return []
    with Client.connect() as client:
        jobs: list[dict[str, Any]] = client.request("ps")["jobs"]
    return [job for job in jobs if options.backend in (None, job.get("backend"))]


def _watch(options: Options) -> None:
    """In place on a terminal; one table after the other where something reads them."""
    if not sys.stdout.isatty():
        while print_text(render(_jobs(options))):
            time.sleep(INTERVAL_S)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(render(_jobs(options))), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(INTERVAL_S)
            live.update(Text(render(_jobs(options))), refresh=True)


def render(jobs: Sequence[dict[str, Any]]) -> str:
    """A line a process, a line for a job without any."""
    if not jobs:
        return "no jobs"
    return text.table(_HEAD, [row for job in jobs for row in _rows(job)])


def _rows(job: dict[str, Any]) -> list[tuple[str, ...]]:
    processes = job["processes"]
    if not processes:
        return [(job["job"], str(job["pid"] or "-"), job["state"], "-", "-", "-", ", ".join(_of_job(job)))]
    return [(job["job"], *_cells(process, _of_job(job))) for process in processes]


def _of_job(job: dict[str, Any]) -> list[str]:
    """What is to be said of it as a whole."""
    image = job.get("image") or {}
    became = {"writing": "being written", "failed": "NOT WRITTEN"}.get(image.get("state", ""))
    notes = ["SIMULATED"] * job["simulated"] + ([f"image {image['name']} {became}"] if became else [])
    return [*notes, *([f"in image {job['only_in']['image']} ONLY"] if job.get("only_in") else [])]


def _cells(process: dict[str, Any], notes: Sequence[str]) -> tuple[str, ...]:
    share = process["covered_bytes"] / process["bytes"] if process["bytes"] else None
    return (
        str(process["pid"]),
        process["state"],
        process["device"] or "-",
        units.size(process["bytes"]),
        "-" if share is None else text.percent(share),
        ", ".join([*notes, *_notes(process)]),
    )


def _notes(process: dict[str, Any]) -> list[str]:
    """How data leaves, where it is not handed over, and why some bytes are not covered."""
    uncovered = process.get("uncovered") or {}
    reasons = [f"{reason} {units.size(count)}" for reason, count in sorted(uncovered.items())]
    return [*(["copyout"] if process.get("strategy") == "copyout" else []), *reasons]
