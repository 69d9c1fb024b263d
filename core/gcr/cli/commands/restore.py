"""`gcr restore`: bring a job back where it was."""

from collections.abc import Sequence

import click

from gcr.cli import text
from gcr.cli.options import Options, Target, common_options, examples, parse_target
from gcr.cli.transfer import Answer, transfer


def parse_moves(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """OLD=NEW, each OLD once; what they mean only the daemon knows."""
    moves: dict[str, str] = {}
    for value in values:
        old, equals, new = value.partition("=")
        if not (old and equals and new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW", ctx, param)
        if old in moves:
            raise click.BadParameter(f"{old} is named twice", ctx, param)
        moves[old] = new
    return moves


@click.command("restore", epilog=examples("gcr restore llm", "gcr restore llm --device 0=1 --device 1=0"))
@click.argument("target", metavar="JOB|PID", callback=parse_target)
@click.option(
    "--device",
    "devices",
    metavar="OLD=NEW",
    multiple=True,
    callback=parse_moves,
    help="Come back on device NEW instead of OLD, each a UUID or a number as `gcr devices` has them; again for more.",
)
@common_options
@click.pass_obj
def command(options: Options, target: Target, devices: dict[str, str]) -> None:
    """Bring back JOB, or the process PID, in place: same process, same addresses, same bytes."""
    transfer("restore", target, options, {"devices": devices}, _summary)


def _summary(report: Answer) -> str:
    cold = ", the worker's context made anew" if report["cold"] else ""
    where = "".join(f", {old} ▸ {new}" for old, new in report["moved"].items())
    amount = text.size(report["bytes"])
    return f"{report['job']} runs again after {text.seconds(report['total_s'])} ({amount}{cold}{where})"
