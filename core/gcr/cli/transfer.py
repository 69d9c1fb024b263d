"""Shared by checkpoint, restore and swap: ask, show progress, and on Ctrl-C wait for the rollback."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from gcr.cli.options import Options, Target
from gcr.cli.output import print_failure, print_json, print_text, say, success
from gcr.cli.progress import progress_view
from gcr.errors import GcrError, Interrupted
from gcr.protocol.jsonbody import error_to_json
from gcr.rendezvous.client import GRACE, Client, settle

Answer = Mapping[str, Any]

NO_TIMEOUT = 86400.0  # the daemon's own deadlines end a command long before; a wait without any would be a hang


log = logging.getLogger(__name__)

Summary = Callable[[Answer], str]


def transfer(
    command: str, targets: Sequence[Target], options: Options, body: Mapping[str, Any], summary: Summary
) -> int:
    """Send the command for each target and print its report. Returns the worst exit code of several.

    Raises GcrError for a single one; Interrupted once the job stands still again.
    """
    if len(targets) == 1:
        report = _carried_out(command, targets[0], options, body)
        if options.json:
            print_json(success(command, report))
        else:
            print_text(_told(report, summary), report)
        return 0
    return _several(command, targets, options, body, summary)


def _several(
    command: str, targets: Sequence[Target], options: Options, body: Mapping[str, Any], summary: Summary
) -> int:
    """A failure of one is no reason to leave the next; an interrupt is."""
    worst, rows = 0, []
    for target in targets:
        try:
            report = _carried_out(command, target, options, body)
            rows.append({"ok": True, **report})
            if not options.json:
                print_text(_told(report, summary), report)
        except GcrError as error:
            worst = max(worst, error.exit)
            rows.append({"ok": False, "job": str(target), "error": error_to_json(error)})
            if not options.json:
                print_failure(error, str(target))
            if isinstance(error, Interrupted):
                break
    if options.json:
        print_json({**success(command, {"jobs": rows}), "ok": worst == 0})
    return worst


def _told(report: Answer, summary: Summary) -> str:
    return ("SIMULATED " if report["simulated"] else "") + summary(report)


def _carried_out(command: str, target: Target, options: Options, body: Mapping[str, Any]) -> Answer:
    began = time.monotonic()
    try:
        answer = ask(command, options, {**body, "target": target})
    except KeyboardInterrupt:
        raise interrupted([target], body.get("image")) from None
    log.info("%s: %s", command, _phases(answer))
    return {**answer, "wall_s": time.monotonic() - began}


def _phases(answer: Answer) -> str:
    """When each phase was over, in seconds from the daemon's receipt of the request."""
    marks = answer.get("phases_s") or {}
    return ", ".join(f"{name} at {at:.3f} s" for name, at in sorted(marks.items(), key=lambda mark: float(mark[1])))


def ask(command: str, options: Options, body: Mapping[str, Any]) -> dict[str, Any]:
    wait = NO_TIMEOUT if options.timeout is None else options.timeout + GRACE
    with options.key().lent() if body.get("image") else nullcontext(()) as key:
        asked = {**body, "timeout": options.timeout, "backend": options.backend, **({"encrypted": True} if key else {})}
        with Client.connect() as client, progress_view(options.json) as progress:
            return client.request(command, asked, key, timeout=wait, on_progress=progress.update)


def interrupted(targets: Sequence[Target], image: object = None) -> Interrupted:
    """Closing the connection told the daemon to stop; it may have decided already, so say where the jobs stand."""
    say("gcr: interrupted, waiting for the rollback")
    stand = [(target, settle(target)) for target in targets]
    states = " and ".join(f"{target} is {job['state'] if job else 'in an unknown state'}" for target, job in stand)
    job = stand[0][1]
    if job is None:
        return Interrupted(f"interrupted; {states}")
    written = job.get("image") or {}
    became = _BECAME.get(written.get("state", "")) if image and written.get("name") == image else None
    text = f"; image {image} {became}" if became else ""
    hint = "gcr ps" if became else ""
    return Interrupted(f"interrupted; {states}{text}", state=job["state"], hint=hint)


_BECAME = {"writing": "is still being written", "durable": "is durable", "failed": "was not written"}
