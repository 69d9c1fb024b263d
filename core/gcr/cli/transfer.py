"""Shared by checkpoint, restore and swap: ask, show progress, and on Ctrl-C wait for the rollback."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from gcr.api.answers import Answer
from gcr.api.reports import Report
from gcr.api.requests import ImageRequest, TransferRequest
from gcr.cli.options import Options
from gcr.cli.output import print_failure, print_json, print_text, say, success
from gcr.cli.progress import progress_view
from gcr.cli.standing import Left, daemon_died, interrupted
from gcr.errors import GcrError, Interrupted, PeerGone
from gcr.protocol.jsonbody import error_to_json
from gcr.rendezvous.client import GRACE, Client

NO_TIMEOUT = 86400.0  # the daemon's own deadlines end a command long before; a wait without any would be a hang


log = logging.getLogger(__name__)

A = TypeVar("A", bound=Answer)
Told = TypeVar("Told", bound=Report)


def transfer(
    requests: Sequence[ImageRequest],
    options: Options,
    kind: type[Told],
    summary: Callable[[Told], str],
    amended: Callable[[Told], Told] = lambda report: report,
    beside: bool = False,
) -> int:
    """Sends each request and prints its report, which is a `kind`. Returns the worst exit code of several.

    amended: adds to the report of a single one · beside: stdout is a program's, so that text goes to stderr
    Raises GcrError for a single one; Interrupted once the job stands still again.
    """
    if len(requests) == 1:
        report = amended(_carried_out(requests[0], options, kind))
        if options.json:
            print_json(success(requests[0].op, report.to_json()))
        elif beside:
            say(_text(report, summary))
        else:
            print_text(_text(report, summary), report.to_json())
        return 0
    return _several(requests, options, kind, summary)


def _several(
    requests: Sequence[ImageRequest], options: Options, kind: type[Told], summary: Callable[[Told], str]
) -> int:
    """Goes on after the failure of one job, and ends after an interrupt."""
    worst, rows = 0, []
    for request in requests:
        try:
            report = _carried_out(request, options, kind)
            rows.append({"ok": True, **report.to_json()})
            if not options.json:
                print_text(_text(report, summary), report.to_json())
        except GcrError as error:
            worst = max(worst, error.exit)
            rows.append({"ok": False, "job": str(request.target), "error": error_to_json(error)})
            if not options.json:
                print_failure(error, str(request.target))
            if isinstance(error, Interrupted):
                break
    if options.json:
        print_json({**success(requests[0].op, {"jobs": rows}), "ok": worst == 0})
    return worst


def _text(report: Told, summary: Callable[[Told], str]) -> str:
    return ("SIMULATED " if report.simulated else "") + summary(report)


def _carried_out(request: ImageRequest, options: Options, kind: type[Told]) -> Told:
    began = time.monotonic()
    try:
        report = ask(request, kind, options)
    except KeyboardInterrupt:
        raise interrupted([request.target], request.image) from None
    except Left:
        raise daemon_died([request.target]) from None
    log.info("%s: %s", request.op, _phases(report))
    return report.timed(time.monotonic() - began)


def _phases(report: Report) -> str:
    """Returns the end of each phase, in seconds from the daemon's receipt of the request."""
    marks = sorted(report.phases_s.items(), key=lambda mark: mark[1])
    return ", ".join(f"{name} at {at:.3f} s" for name, at in marks)


def ask(request: TransferRequest, kind: type[A], options: Options) -> A:
    """Returns the daemon's answer, a `kind`, and shows progress meanwhile. Raises as `Client.ask`, and Left."""
    wait = NO_TIMEOUT if request.timeout is None else request.timeout + GRACE
    with _sealed(request, options) as (asked, key), Client.connect() as client, progress_view(options.json) as progress:
        try:
            return client.ask(asked, kind, key, timeout=wait, on_event=progress.update)
        except PeerGone as error:
            raise (Left if client.is_closed else error) from None


@contextmanager
def _sealed(request: TransferRequest, options: Options) -> Iterator[tuple[TransferRequest, Sequence[int]]]:
    """Yields the request with the key of its store, if it has an image. Raises UsageError, KeyUnusable."""
    if not (isinstance(request, ImageRequest) and request.image):
        yield request, ()
        return
    with options.key().lent() as key:
        yield replace(request, encrypted=bool(key)), key
