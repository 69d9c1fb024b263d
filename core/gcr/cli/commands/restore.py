"""`gcr restore`: bring a job back where it was."""

import click

from gcr.cli import text
from gcr.cli.options import Options, Target, common_options, examples, parse_target
from gcr.cli.transfer import Answer, transfer


@click.command("restore", epilog=examples("gcr restore llm", "gcr restore 4711 --timeout 60"))
@click.argument("target", metavar="JOB|PID", callback=parse_target)
@common_options
@click.pass_obj
def command(options: Options, target: Target) -> None:
    """Bring back JOB, or the process PID, in place: same process, same addresses, same bytes."""
    transfer("restore", target, options, {}, _summary)


def _summary(report: Answer) -> str:
    cold = ", the worker's context made anew" if report["cold"] else ""
    return f"{report['job']} runs again after {text.seconds(report['total_s'])} ({text.size(report['bytes'])}{cold})"
