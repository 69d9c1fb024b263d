"""`gcr events`: what has happened to jobs, and what happens."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import click
from msgspec import Struct

from gcr.api.jobevents import AnyEvent, DaemonStarted, EventsMissed
from gcr.cli import completing
from gcr.cli.eventlines import render
from gcr.cli.options import Options, common_options, examples, parse_name
from gcr.cli.output import print_json, print_text, say
from gcr.errors import DaemonUnavailable, Interrupted
from gcr.rendezvous.client import Client
from gcr.rendezvous.following import Reader

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """`90s`, `10m`, `2h`, `1d` before now, or a moment in ISO 8601, in local time unless it has an offset."""
    if value is None:
        return None
    try:
        if match := _SPAN.match(value):
            return datetime.now(UTC) - timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        text = f"{value!r} is neither a span, such as 10m, nor a moment, such as 2026-11-27T06:30"
        raise click.BadParameter(text, ctx, param) from None


class Chosen(Struct, frozen=True):
    """The events that are shown."""

    job: str | None
    since: datetime | None

    def has(self, event: AnyEvent) -> bool:
        """Returns whether to show an event. A start of a daemon, and a lack of events, may concern every job."""
        if self.since and datetime.fromisoformat(event.time) < self.since:
            return False
        about_all = isinstance(event, DaemonStarted | EventsMissed)
        return self.job is None or about_all or getattr(event, "job", None) == self.job


@click.command(
    "events",
    epilog=examples("gcr events", "gcr events llm --since 10m", "gcr events -f", "gcr events --follow --json"),
)
@click.argument("job", metavar="[JOB]", required=False, callback=parse_name, shell_complete=completing.ended_jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C, also with later daemons.")
@click.option(
    "--since",
    metavar="WHEN",
    callback=parse_since,
    help="Only later events: a span before now, as 90s, 10m, 2h or 1d, or a moment, as 2026-11-27T06:30.",
)
@common_options
@click.pass_obj
def command(options: Options, job: str | None, follow: bool, since: datetime | None) -> int:
    """Show what has happened to jobs, or to JOB: begin and end, checkpoints, restores, images, saves and failures.

    Without JOB also what `gcr rm` and `gcr prune` have removed.

    The daemon keeps the last 1,024 events in memory, and the last 256 saves of training programs beside them. They end
    with it: the first event of each daemon says that it has started. A reader that is slower than the events is told
    how many it has missed, and delays no job.

    Under --json each event is one object on a line, by the schema `events`. A failure is an object with `ok` false.
    """
    chosen = Chosen(job, since)
    try:
        _show(options, chosen, Reader().follow(_gone) if follow else _past())
    except KeyboardInterrupt:
        return Interrupted.exit
    return 0


def _show(options: Options, chosen: Chosen, events: Iterable[AnyEvent]) -> None:
    """Prints until there are no more, or until no program reads the output."""
    for event in events:
        if not chosen.has(event):
            continue
        if not (print_json(event.line()) if options.json else print_text(render(event))):
            return


def _past() -> Iterable[AnyEvent]:
    try:
        with Client.connect(autostart=False) as client:
            yield from Reader().rest(client)
    except DaemonUnavailable:
        say("gcr: no daemon runs, so there are no events")


def _gone(_error: Exception) -> None:
    say("gcr: no daemon answers; events of the next one follow")
