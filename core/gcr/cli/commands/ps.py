"""`gcr ps`: jobs and their processes."""

import sys
import time
from collections.abc import Sequence
from functools import cache

import click

from gcr.api.listings import JobInfo
from gcr.cli import completing, ended, jobtable, migrating, text
from gcr.cli.options import Options, Target, common_options, examples, parse_targets
from gcr.cli.output import print_json, print_text, say, success
from gcr.errors import NoSuchJob, UsageError
from gcr.job import runs
from gcr.job.runs import Run
from gcr.names import meant
from gcr.rendezvous import former
from gcr.rendezvous.client import all_jobs

INTERVAL_S = 1.0

Jobs = list[JobInfo]


@click.command("ps", epilog=examples("gcr ps", "gcr ps llm", "gcr ps --all", "gcr ps --watch", "gcr ps --json"))
@click.argument("targets", metavar="[JOB|PID]...", nargs=-1, callback=parse_targets, shell_complete=completing.jobs)
@click.option("--all", "-a", "everything", is_flag=True, help="Also jobs that have ended, and how.")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@common_options
@click.pass_obj
def command(options: Options, targets: Sequence[Target], everything: bool, watch: bool) -> None:
    """Show jobs and their processes: device, memory, the share of it that gcr moves itself, state, age.

    `arena 40 %` among the notes: so much of the host memory that a checkpoint needs is ready; the checkpoint waits for
    the rest.

    --all adds jobs that have ended: exit code or signal, the state they were in, and when. The setting `keep_jobs`
    bounds how many are remembered.

    Below the table: jobs that are moving to another node, or from one, and what to do where the command has died.
    """
    if watch and options.json:
        raise UsageError("--watch draws for people and --json prints one object: choose one")
    if watch:
        _watch(options, targets, everything)
        return
    jobs, over = _found(options, targets, everything)
    left = former.left()
    moving = [each for each in migrating.found() if not targets or each.job in targets]
    if options.json:
        more = {"ended": [run.row() for run in over]} if everything else {}
        more |= {"images_left": [each.row() for each in left]} if left else {}
        more |= {"migrations": [*map(migrating.row, moving)]} if moving else {}
        print_json(success("ps", {"jobs": [job.to_json() for job in jobs], **more}))
    else:
        print_text("\n".join([render(jobs, over), *(each.said() for each in left), *map(migrating.said, moving)]))


def _found(options: Options, targets: Sequence[Target], everything: bool) -> tuple[Jobs, list[Run]]:
    """Raises NoSuchJob for a name that is neither."""
    jobs = jobs_of(options)
    over = _ended(jobs) if everything or targets else []
    if not targets:
        return jobs, over
    chosen = [job for job in jobs if any(job.is_meant(target) for target in targets)]
    past = [run for run in over if run.job in targets or run.pid in targets]
    for target in targets:
        if not any(job.is_meant(target) for job in chosen):
            _refuse_unknown(target, jobs, past, everything)
    return chosen, past if everything else []


def _refuse_unknown(target: Target, jobs: Jobs, past: Sequence[Run], everything: bool) -> None:
    run = next((run for run in past if target in (run.job, run.pid)), None)
    if run is None:
        raise NoSuchJob(f"no job {target!r}{meant(str(target), [job.job for job in jobs])}", hint="gcr ps --all")
    if not everything:
        runs.refuse_ended(target)


def _ended(jobs: Jobs) -> list[Run]:
    """Returns the ended jobs, without those that go on because processes outlived their program."""
    alive = {(job.job, job.pid) for job in jobs}
    return [run for run in runs.all_runs() if run.end is not None and (run.job, run.pid) not in alive]


def jobs_of(options: Options) -> Jobs:
    """Returns the jobs; starts no daemon if there is no trace of a job. Raises NotAllKnown rather than say "none"."""
    return [job for job in all_jobs(_say_once) if options.backend in (None, job.backend)]


@cache
def _say_once(text: str) -> None:
    """Prints a text once, also if jobs are looked at every second."""
    say(f"gcr: {text}")


def _watch(options: Options, targets: Sequence[Target], everything: bool) -> None:
    """Shows the table in place on a terminal, and one table after the other in a pipe."""
    if not sys.stdout.isatty():
        while print_text(render(*_found(options, targets, everything))):
            time.sleep(INTERVAL_S)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=False) as live:
        while True:
            live.update(Text(render(*_found(options, targets, everything))), refresh=True)
            time.sleep(INTERVAL_S)


def render(jobs: Sequence[JobInfo], over: Sequence[Run] = ()) -> str:
    """Jobs that run or are suspended, then those that have ended."""
    width = text.width()
    tables = [jobtable.table(jobs, width) if jobs else "no jobs"]
    return "\n\n".join([*tables, *([ended.table(over, width)] if over else [])])
