"""`gcr migrate`: a job moves to another node."""

import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import click
from msgspec.structs import replace

from gcr import units
from gcr.api.events import ProgressEvent
from gcr.api.migrations import MigrationReport
from gcr.cli import completing, text
from gcr.cli.clusternodes import address_option
from gcr.cli.commands.restore import parse_moves
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import failure, print_failure, print_json, print_text, success
from gcr.cli.progress import progress_view
from gcr.cluster import plugins
from gcr.cluster.nodes import CarriedLink, SocketLink
from gcr.cluster.plugins import Node
from gcr.clustererrors import NodeUnreachable
from gcr.errors import NoSuchJob, UsageError
from gcr.migration import running
from gcr.migration.running import Result
from gcr.migration.ways import DEFAULT_TIMEOUT, Between, Way
from gcr.runtime import socket_path

_LOOPBACK = "127.0.0.1"
_FACTS_S = 60.0
Hear = Callable[[ProgressEvent], None]


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return value and str(ip_address(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no IP address", ctx, param) from None


@click.command(
    "migrate",
    epilog=examples(
        "gcr migrate llm --to node-2",
        "gcr migrate llm --to node-2 --device 0=1",
        "gcr migrate llm --from node-1 --to node-2 --recover",
    ),
)
@click.argument("job", metavar="JOB", callback=parse_job, shell_complete=completing.jobs)
@click.option("--to", "target", metavar="NODE", required=True, help="A node of the Ray cluster, or a daemon's socket.")
@click.option("--from", "source", metavar="NODE", help="The node that has the job; default: found, or this one.")
@click.option(
    "--device",
    "devices",
    metavar="OLD=NEW",
    multiple=True,
    callback=parse_moves,
    help="Come back on device NEW of the target instead of OLD, each a UUID or a number; again for more.",
)
@click.option(
    "--host", metavar="ADDRESS", callback=_address, help="The IP address of the source, for the target; default: Ray's."
)
@click.option("--recover", is_flag=True, help="Settle the migration after the command that made it has died.")
@address_option
@common_options
@click.pass_obj
def command(
    options: Options,
    job: str,
    target: str,
    source: str | None,
    devices: dict[str, str],
    host: str | None,
    recover: bool,
    address: str | None,
) -> int:
    """Move JOB, which runs, to another node: it is copied while it runs, stopped for what changed, and goes on there.

    Whatever fails before the target has it, the job runs on at the source. It never runs at both. Both nodes need the
    same gcr, user, driver, device models, and paths of files that the job has open (docs/migrate.md). --recover brings
    the job to one node after the command was killed.
    """
    if recover and devices:
        raise UsageError("--device is for a migration that begins")
    began = time.monotonic()
    with progress_view(options.json) as view:
        lock = threading.Lock()

        def hear(event: ProgressEvent) -> None:
            with lock:
                view.update(event)

        between = _between(job, source, target, address, hear)
        limit = options.timeout or DEFAULT_TIMEOUT
        between = replace(between, host=host or between.host, devices=devices, timeout=limit)
        try:
            result = running.recover(between) if recover else running.migrate(between)
        finally:
            between.source.link.close()
            between.target.link.close()
    return _shown(options, result, time.monotonic() - began)


def _between(job: str, source: str | None, target: str, address: str | None, hear: Hear) -> Between:
    """Raises UsageError, NoCluster, NodeUnreachable, NoSuchJob."""
    if "/" in target:
        here = source or str(socket_path())
        if "/" not in here or address:
            raise UsageError("both nodes are sockets, or both are of a Ray cluster", hint="--from SOCKET --to SOCKET")
        if here == target:
            raise UsageError("both nodes are the same")
        return Between(job, _by_socket(here, hear), _by_socket(target, hear), _LOOPBACK)
    nodes = {each.name: each for each in plugins.cluster(address).nodes()}
    to = _named(target, nodes)
    at = _named(source, nodes) if source else _with_job(job, nodes)
    if at.name == to.name:
        raise UsageError(f"job {job} is on {to.name} already")
    return Between(job, Way(at.name, CarriedLink(at), hear), Way(to.name, CarriedLink(to), hear), at.address)


def _by_socket(path: str, hear: Hear) -> Way:
    return Way(path, SocketLink(Path(path)), hear)


def _named(name: str, nodes: dict[str, Node]) -> Node:
    if name not in nodes:
        known = ", ".join(sorted(nodes)) or "none"
        raise NodeUnreachable(f"the cluster has no node {name}; it has {known}", hint="gcr cluster status")
    return nodes[name]


def _with_job(job: str, nodes: dict[str, Node]) -> Node:
    for node in nodes.values():
        if any(each.job == job for each in node.facts(_FACTS_S).jobs):
            return node
    raise NoSuchJob(f"no node of the cluster has a job {job!r}", hint="gcr cluster status")


def _shown(options: Options, result: Result, took: float) -> int:
    """Prints the report, also where the job did not move. Returns the exit code."""
    report = replace(result.report, wall_s=took)
    if options.json:
        head = failure("migrate", result.error) if result.error else success("migrate", {})
        print_json({**head, **report.to_json()})
    else:
        if result.error:
            print_failure(result.error)
        if not isinstance(result.error, NoSuchJob):
            print_text("\n".join(_lines(report)))
    return result.error.exit if result.error else 0


def _lines(report: MigrationReport) -> list[str]:
    simulated = "SIMULATED " if report.simulated else ""
    where = {
        "done": f"runs at {report.target}",
        "refused": f"is at {report.source} as before",
        "taken_back": f"runs at {report.source}",
        "unsettled": "is not settled",
    }[report.outcome]
    lines = [f"{simulated}{report.job} {where}, after {text.seconds(report.wall_s)}"]
    for number, each in enumerate(report.rounds, 1):
        worth = "" if each.paid else ", not worth it"
        took = text.seconds(each.copy_s + each.pull_s)
        host = "" if each.host_bytes else ", without host memory: gcr daemon logs at the source"
        lines.append(f"  round {number}: {units.size(each.bytes_sent)} sent in {took}{worth}{host}")
    if report.stop:
        lines.append(f"  stopped for {text.seconds(report.stop.stop_s)}; {units.size(report.bytes_sent)} sent in all")
    return [*lines, *(f"  left over: {each}" for each in report.left_over)]
