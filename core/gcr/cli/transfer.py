"""What `gcr checkpoint` and `gcr restore` share: ask, show progress, and on Ctrl-C wait for the rollback."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from gcr.cli.options import Options, Target
from gcr.cli.output import print_json, print_text, say, success
from gcr.cli.progress import progress_view
from gcr.client import GRACE, Client, settle
from gcr.errors import Interrupted

Answer = Mapping[str, Any]

NO_TIMEOUT = 86400.0  # the daemon's own deadlines end a command long before; a wait without any would be a hang


def transfer(
    command: str, target: Target, options: Options, body: Mapping[str, Any], summary: Callable[[Answer], str]
) -> None:
    """Send the command and print its report. Raises GcrError; Interrupted once the job stands still again."""
    began = time.monotonic()
    try:
        answer = _ask(command, options, {**body, "target": target})
    except KeyboardInterrupt:
        raise _interrupted(target, body.get("image")) from None
    report = {**answer, "wall_s": time.monotonic() - began}
    if options.json:
        print_json(success(command, report))
    else:
        print_text(("SIMULATED " if report["simulated"] else "") + summary(report), report)


def _ask(command: str, options: Options, body: Mapping[str, Any]) -> dict[str, Any]:
    wait = NO_TIMEOUT if options.timeout is None else options.timeout + GRACE
    with options.key().lent() if body.get("image") else nullcontext(()) as key:
        asked = {**body, "timeout": options.timeout, "backend": options.backend, **({"encrypted": True} if key else {})}
        with Client.connect() as client, progress_view(options.json) as progress:
            return client.request(command, asked, key, timeout=wait, on_progress=progress.update)


def _interrupted(target: Target, image: object) -> Interrupted:
    """Closing the connection told the daemon to stop; it may have decided already, so say where the job stands."""
    say("gcr: interrupted, waiting for the rollback")
    job = settle(target)
    if job is None:
        return Interrupted(f"interrupted; {target} is in an unknown state")
    written = job.get("image") or {}
    became = _BECAME.get(written.get("state", "")) if image and written.get("name") == image else None
    text = f"; image {image} {became}" if became else ""
    hint = "gcr ps" if became else ""
    return Interrupted(f"interrupted; {target} is {job['state']}{text}", state=job["state"], hint=hint)


_BECAME = {"writing": "is still being written", "durable": "is durable", "failed": "was not written"}
