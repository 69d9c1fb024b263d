"""`gcr recover`: finish or undo what a daemon that died left open."""

from collections.abc import Sequence
from typing import Any

import click

from gcr.api.answers import Recovered, RecoveredJob
from gcr.api.requests import RecoverRequest
from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import failure, print_failure, print_json, print_text, success
from gcr.errors import GcrError
from gcr.protocol.jsonbody import error_from_json
from gcr.rendezvous.client import GRACE, Client

TIMEOUT = 120.0


@click.command("recover", epilog=examples("gcr recover", "gcr recover --json"))
@common_options
@click.pass_obj
def command(options: Options) -> int:
    """Finish or undo every transaction that was interrupted, and say what became of each job.

    A new daemon does this by itself when it starts; the command starts one and shows what it did. It waits for an
    attempt that is under way, and makes another if that one fails. Every job is tried: one that cannot be brought back
    is named, and the exit code is the worst.
    """
    wait = TIMEOUT if options.timeout is None else options.timeout + GRACE
    with Client.connect() as client:
        answer = client.ask(RecoverRequest(), Recovered, timeout=wait)
    failed = [(each.job, error_from_json(dict(each.error))) for each in answer.failed]
    worst = max((error for _, error in failed), key=lambda error: error.exit, default=None)
    if options.json:
        print_json(_document(answer, worst))
    else:
        if answer.jobs or not failed:
            print_text(_render(answer.jobs))
        for job, error in failed:
            print_failure(error, job)
    return worst.exit if worst else 0


def _document(answer: Recovered, worst: GcrError | None) -> dict[str, Any]:
    """Returns the object of --json. After a failure `jobs` has the jobs that failed as well, each with its error."""
    told = answer.to_json()
    if worst is None:
        return success("recover", {"jobs": told["jobs"]})
    return {**failure("recover", worst), "jobs": told["jobs"] + told["failed"]}


def _render(jobs: Sequence[RecoveredJob]) -> str:
    if not jobs:
        return "nothing to recover"
    rows = [(job.job, job.was, job.now, job.action) for job in jobs]
    return text.table(("JOB", "WAS", "NOW", "ACTION"), rows)
