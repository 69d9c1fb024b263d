"""`gcr cluster checkpoint`, `restore` and `recover`: a job that runs on several nodes, as one."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from gcr import config
from gcr.api.clusters import ClusterReport, NodeReport
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cli.clusternodes import address_option, asked
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import failure, print_failure, print_json, print_text, success
from gcr.cluster import plugins
from gcr.cluster.calls import Over, Result
from gcr.cluster.nodes import CarriedLink, Link, SocketLink
from gcr.cluster.plugins import NodeFacts
from gcr.cluster.running import new_cut
from gcr.errors import GcrError, NoSuchJob, UsageError

Command = Callable[..., Any]
Links = Mapping[str, Link]
BY_SOCKET = "--node /run/a/gcrd.sock --node /run/b/gcrd.sock"


def _nodes(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Sequence[str]:
    if len(set(values)) < len(values):
        raise click.BadParameter("a node is named twice", ctx, param)
    return values


def _over_nodes(function: Command) -> Command:
    """The argument and the options of each command over nodes."""
    node = click.option(
        "--node",
        "nodes",
        metavar="SOCKET",
        multiple=True,
        callback=_nodes,
        help="The socket of a node's daemon, without Ray; again for each node of the job.",
    )
    job = click.argument("job", metavar="JOB", callback=parse_job)
    return job(node(address_option(common_options(click.pass_obj(function)))))


@click.command(
    "checkpoint", epilog=examples("gcr cluster checkpoint train", f"gcr cluster checkpoint train {BY_SOCKET}")
)
@click.option("--data-only", is_flag=True, help="Free the device data only; the contexts stay on the devices.")
@_over_nodes
def checkpoint(options: Options, job: str, nodes: Sequence[str], address: str | None, data_only: bool) -> int:
    """Suspend JOB on every node at one cut, or let it run on on every node.

    Each node runs its part of the job under gcr and under this name. No node is touched before every node has admitted
    the checkpoint, and none hands its memory over before all processes of all nodes stand still. Where a node fails,
    all others run again.
    """
    request = CheckpointRequest(
        target=job, cut=new_cut(), timeout=options.timeout, backend=options.backend, data_only=data_only
    )
    links = _links(job, nodes, address, options)
    return _shown("checkpoint", options, lambda: _over(links).checkpoint(request))


@click.command("restore", epilog=examples("gcr cluster restore train", f"gcr cluster restore train {BY_SOCKET}"))
@_over_nodes
def restore(options: Options, job: str, nodes: Sequence[str], address: str | None) -> int:
    """Bring JOB back on every node, or leave it suspended on every node.

    Refused unless every node has it suspended by the same cut, or every node by none. No gate opens before every node
    has its memory back.
    """
    request = RestoreRequest(target=job, cut=new_cut(), timeout=options.timeout, backend=options.backend)
    links = _links(job, nodes, address, options)
    return _shown("restore", options, lambda: _over(links).restore(request))


@click.command("recover", epilog=examples("gcr cluster recover train", f"gcr cluster recover train {BY_SOCKET}"))
@_over_nodes
def recover(options: Options, job: str, nodes: Sequence[str], address: str | None) -> int:
    """Settle JOB after the coordinator of a cut has died: say where it stands, and leave no mix.

    A cut that stands on every node is left as it is. Else the job is made to run on every node: suspended parts are
    restored, and those that wait for other nodes give up.
    """
    request = RestoreRequest(target=job, timeout=options.timeout, backend=options.backend)
    links = _links(job, nodes, address, options, silent_too=True)
    return _shown("recover", options, lambda: _over(links).recover(request))


def _links(job: str, sockets: Sequence[str], address: str | None, options: Options, silent_too: bool = False) -> Links:
    """Returns the nodes that the command line names, else those of the cluster at hand that have the job.

    silent_too: also those that do not answer, which may have a part of it; else their error is raised.
    """
    if sockets and address:
        raise UsageError("--address is of a Ray cluster, --node of a node without one: choose one")
    if sockets:
        return {socket: SocketLink(Path(socket)) for socket in sockets}
    found = plugins.cluster(address).nodes()
    known = asked(found, options)
    unheard = [error for error in known.values() if isinstance(error, GcrError)]
    if unheard and not silent_too:
        raise unheard[0]
    parts = {node.name: CarriedLink(node) for node in found if _has_part(known[node.name], job)}
    if len(parts) == len(unheard):
        raise NoSuchJob(f"no node of the cluster has a job {job!r}", hint="gcr cluster status")
    return parts


def _has_part(facts: NodeFacts | GcrError, job: str) -> bool:
    """Returns whether a node has the job, or may have it, since it did not answer."""
    return isinstance(facts, GcrError) or any(each.job == job for each in facts.jobs)


def _over(links: Links) -> Over:
    return Over(links, config.load().cut_s)


def _shown(name: str, options: Options, carry_out: Callable[[], Result]) -> int:
    """Prints the report, also where the task was not done. Returns the exit code."""
    began, name = time.monotonic(), f"cluster {name}"
    done = carry_out()
    report = replace(done.report, wall_s=time.monotonic() - began)
    if options.json:
        head = failure(name, done.error) if done.error else success(name, {})
        print_json({**head, **report.to_json()})
    elif done.error is None:
        print_text("\n".join([_summary(report), *map(_line, report.nodes)]))
    else:
        print_failure(done.error)
        print_text("\n".join(map(_line, report.nodes)))
    return done.error.exit if done.error else 0


def _summary(report: ClusterReport) -> str:
    places = {node.place for node in report.nodes}
    where = places.pop() if len(places) == 1 else "settled"
    by = f" by cut {report.cut}" if report.cut and where == "suspended" else ""
    return f"{report.job} · {where} on {len(report.nodes)} nodes{by}, after {report.wall_s:.2f} s"


def _line(node: NodeReport) -> str:
    simulated = "SIMULATED " if node.report and node.report.simulated else ""
    why = f": {node.error['message']}" if node.error else ""
    return f"  {simulated}{node.node} · {node.place}{why}"
