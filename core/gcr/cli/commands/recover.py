"""`gcr recover`: finish or undo what a daemon that died left open."""

from collections.abc import Sequence
from typing import Any

import click

from gcr.api.answers import MovingJob, Recovered, RecoveredJob
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

    If the command of a migration has died, the job comes back here, unless this node gave it away. gcr names every
    other migration that is not over, and prints the command that settles it.
    """
    wait = TIMEOUT if options.timeout is None else options.timeout + GRACE
    with Client.connect() as client:
        answer = client.ask(RecoverRequest(), Recovered, timeout=wait)
    failed = [(each.job, error_from_json(dict(each.error))) for each in answer.failed]
    failed += [(each.job, error_from_json(dict(each.error))) for each in answer.migrations if each.error]
    worst = max((error for _, error in failed), key=lambda error: error.exit, default=None)
    if options.json:
        print_json(_document(answer, worst))
    else:
        lines = [*filter(None, map(_moving, answer.migrations))]
        if answer.jobs or not (failed or lines):
            lines.insert(0, _render(answer.jobs))
        if lines:
            print_text("\n".join(lines))
        for job, error in failed:
            print_failure(error, job)
    return worst.exit if worst else 0


def _document(answer: Recovered, worst: GcrError | None) -> dict[str, Any]:
    """Returns the object of --json. After a failure `jobs` has the jobs that failed as well, each with its error."""
    told = answer.to_json()
    moving = {"migrations": told["migrations"]} if answer.migrations else {}
    if worst is None:
        return success("recover", {"jobs": told["jobs"], **moving})
    return {**failure("recover", worst), "jobs": told["jobs"] + told["failed"], **moving}


def _moving(job: MovingJob) -> str:
    """Returns what became of a migration; nothing where its error says it."""
    if job.outcome == "settled":
        return f"{job.job} did not move to {job.target}, and is here; once that node answers: {job.command}"
    if job.outcome == "under_way":
        return f"{job.job} is moving from {job.source} to {job.target}, and its command runs"
    if job.error:
        return ""
    return f"{job.job} is moving from {job.source} to {job.target}; if its command has died: {job.command}"


def _render(jobs: Sequence[RecoveredJob]) -> str:
    if not jobs:
        return "nothing to recover"
    rows = [(job.job, job.was, job.now, job.action) for job in jobs]
    return text.table(("JOB", "WAS", "NOW", "ACTION"), rows)
