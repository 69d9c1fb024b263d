"""`gcr logs`: what a detached job printed."""

import time
from contextlib import closing

import click

from gcr.cli import completing, ended
from gcr.cli.joblog import JobLog
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import print_json, print_text, success
from gcr.errors import UsageError
from gcr.job import runs
from gcr.job.runs import Run

LOOK_S = 0.1


@click.command("logs", epilog=examples("gcr logs train", "gcr logs train -f", "gcr logs train -n 20"))
@click.argument("job", metavar="JOB", callback=parse_job, shell_complete=completing.ended_jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on with what it prints, until it ends.")
@click.option("-n", "--lines", "count", type=click.IntRange(0, 1_000_000), help="Only the last so many lines.")
@common_options
@click.pass_obj
def command(options: Options, job: str, follow: bool, count: int | None) -> None:
    """Show what JOB printed, a job that was started with `gcr run -d`; also after its end.

    A log is kept within the setting `job_log_bytes`, and goes with the job's record.
    """
    if follow and options.json:
        raise UsageError("--follow is for people and --json prints one object: choose one")
    run = ended.newest(job)
    with closing(JobLog.of(run)) as log:
        said = _last(log.whole(), count)
        if options.json:
            lines = said.decode(errors="replace").splitlines()
            print_json(success("logs", {"job": job, "path": log.path, "lines": lines}))
        elif print_text(said) and follow:
            _follow(run, log)


def _last(said: bytes, count: int | None) -> bytes:
    return said if count is None else b"".join(said.splitlines(keepends=True)[-count:] if count else [])


def _follow(run: Run, log: JobLog) -> None:
    """Prints until the job has ended and all is shown, or until no program reads the output."""
    while True:
        over = runs.again(run).end is not None  # before reading: what was printed before the end is shown
        if not all(map(print_text, log.fresh())):
            return
        if over:
            return
        time.sleep(LOOK_S)
