"""`gcr wait`: wait for a job's end, and return its exit code."""

import click

from gcr.cli import completing, ended
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import print_json, print_text, success


@click.command("wait", epilog=examples("gcr wait train", "gcr wait train --timeout 3600", "gcr --json wait train"))
@click.argument("job", metavar="JOB", callback=parse_job, shell_complete=completing.ended_jobs)
@common_options
@click.pass_obj
def command(options: Options, job: str) -> int:
    """Wait until JOB has ended, and return its exit code, as `gcr run` does: 128+n for signal n.

    For a job that has ended already the code is there at once. --json tells the code of a job from a failure of gcr.
    """
    run = ended.awaited(job, options.timeout)
    assert run.end
    assert run.end.code is not None
    if options.json:
        row = run.row()
        argv = row.pop("command")  # the name of the command has that place
        print_json(success("wait", {**row, "argv": argv}))
    else:
        print_text(f"{job}: {run.end.said()}", run.row())
    return run.end.code
