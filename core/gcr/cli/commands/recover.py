"""`gcr recover`: finish or undo what a daemon that died left open."""

from collections.abc import Sequence

import click

from gcr.api.answers import Recovered, RecoveredJob
from gcr.api.requests import RecoverRequest
from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.rendezvous.client import GRACE, Client

TIMEOUT = 120.0


@click.command("recover", epilog=examples("gcr recover", "gcr recover --json"))
@common_options
@click.pass_obj
def command(options: Options) -> None:
    """Finish or undo every transaction that was interrupted, and say what became of each job.

    A new daemon does this by itself when it starts; the command starts one and shows what it did. It waits for an
    attempt that is under way, and makes another if that one fails.
    """
    wait = TIMEOUT if options.timeout is None else options.timeout + GRACE
    with Client.connect() as client:
        answer = client.ask(RecoverRequest(), Recovered, timeout=wait)
    if options.json:
        print_json(success("recover", answer.to_json()))
    else:
        print_text(_render(answer.jobs))


def _render(jobs: Sequence[RecoveredJob]) -> str:
    if not jobs:
        return "nothing to recover"
    rows = [(job.job, job.was, job.now, job.action) for job in jobs]
    return text.table(("JOB", "WAS", "NOW", "ACTION"), rows)
