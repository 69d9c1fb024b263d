"""`gcr daemon`: the daemon starts by itself; this is for looking at it, and for stopping it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gcr import runtime, units
from gcr.api.answers import DaemonStatus
from gcr.api.requests import StatusRequest, StopRequest
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.errors import DaemonUnavailable, DeadlinePassed
from gcr.rendezvous.client import Client

STOP_TIMEOUT = 30.0
LOG_NAME = "gcrd.log"
_NOT_RUNNING: dict[str, Any] = {
    "running": False,
    "pid": None,
    "version": None,
    "arena_bytes": 0,
    "arena_pinned_bytes": 0,
    "jobs": 0,
    "workers": [],
}


@click.group("daemon", epilog=examples("gcr daemon status", "gcr daemon logs", "gcr daemon stop"))
@common_options
def command() -> None:
    """Look at the daemon, start it or stop it. It starts by itself with the first job."""


def _finish(options: Options, name: str, fields: dict[str, Any], line: Callable[[dict[str, Any]], str]) -> None:
    if options.json:
        print_json(success(f"daemon {name}", fields))
    else:
        print_text(line(fields))


@command.command("start", epilog=examples("gcr daemon start"))
@common_options
@click.pass_obj
def start(options: Options) -> None:
    """Start the daemon, unless it runs."""
    running = _is_running()
    with Client.connect() as client:
        fields = {"pid": client.daemon_pid, "version": client.daemon_version, "started": not running}
    _finish(options, "start", fields, _started)


def _is_running() -> bool:
    try:
        Client.connect(autostart=False).close()
    except DaemonUnavailable:
        return False
    return True


def _started(fields: dict[str, Any]) -> str:
    how = "started" if fields["started"] else "runs already"
    return f"gcrd {fields['version']} {how}, pid {fields['pid']}"


@command.command("stop", epilog=examples("gcr daemon stop", "gcr daemon stop --force"))
@click.option("--force", is_flag=True, help="Also while a job is suspended: the processes that hold its state keep it.")
@common_options
@click.pass_obj
def stop(options: Options, force: bool) -> None:
    """Stop the daemon. Refused while a job is suspended, without --force."""
    wait = options.timeout or STOP_TIMEOUT
    try:
        client = Client.connect(autostart=False, any_version=True)
    except DaemonUnavailable:
        _finish(options, "stop", {"stopped": False, "pid": None}, lambda _fields: "no daemon runs")
        return
    request = StopRequest(force=force)
    with client:
        client.request(request.op, request.to_json(), timeout=wait)
        _await_end(client, wait)
    _finish(options, "stop", {"stopped": True, "pid": client.daemon_pid}, lambda f: f"stopped gcrd, pid {f['pid']}")


def _await_end(client: Client, timeout: float) -> None:
    if not client.wait_closed(timeout):
        raise DeadlinePassed(f"gcrd, pid {client.daemon_pid}, said it would stop and still runs after {timeout:g} s")


@command.command("status", epilog=examples("gcr daemon status", "gcr daemon status --json"))
@common_options
@click.pass_obj
def status(options: Options) -> None:
    """Show the daemon's pid, version, arena, jobs and workers. Starts none."""
    try:
        with Client.connect(autostart=False, any_version=True) as client:
            fields = {"running": True, **client.ask(StatusRequest(), DaemonStatus).to_json()}
    except DaemonUnavailable:
        fields = _NOT_RUNNING
    _finish(options, "status", fields, _status_text)


def _status_text(fields: dict[str, Any]) -> str:
    if not fields["running"]:
        return "no daemon runs"
    arena = f"{units.size(fields['arena_pinned_bytes'])} of {units.size(fields['arena_bytes'])} registered"
    return "\n".join(
        [
            f"gcrd {fields['version']}, pid {fields['pid']}",
            f"  arena    {arena}",
            f"  jobs     {fields['jobs']}",
            f"  workers  {len(fields['workers'])}",
        ]
    )


@command.command("logs", epilog=examples("gcr daemon logs", "gcr daemon logs -n 20"))
@click.option("-n", "--lines", "count", type=click.IntRange(1, 100_000), default=100, show_default=True)
@common_options
@click.pass_obj
def logs(options: Options, count: int) -> None:
    """Print the end of the daemon's log."""
    path = runtime.log_dir() / LOG_NAME
    fields = {"path": str(path), "lines": _tail(path, count)}
    _finish(options, "logs", fields, lambda f: "\n".join([f"# {f['path']}", *f["lines"]]))


def _tail(path: Path, count: int) -> list[str]:
    if not path.exists():
        return []
    with path.open(errors="replace") as log:
        return log.read().splitlines()[-count:]
