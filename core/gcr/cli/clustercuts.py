"""`gcr cluster checkpoint`, `restore` and `recover`: a job that runs on several nodes, as one."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import click
from msgspec.structs import replace

from gcr import config
from gcr.api.checks import ALLOWED
from gcr.api.clusters import ClusterReport, NodeReport
from gcr.api.partrequests import PartsRequest
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cli.clusternodes import address_option, asked
from gcr.cli.options import Options, common_options, examples, parse_job, parse_name
from gcr.cli.output import failure, print_failure, print_json, print_text, success
from gcr.cli.text import plural
from gcr.cluster import plugins
from gcr.cluster.calls import Over, Result
from gcr.cluster.nodes import CarriedLink, Link, SocketLink
from gcr.cluster.plugins import NodeFacts
from gcr.cluster.running import new_cut
from gcr.cutroot import Root, cut_name
from gcr.errors import GcrError, NoSuchJob, UsageError

Command = Callable[..., Any]
Links = Mapping[str, Link]
BY_SOCKET = "--node /run/a/gcrd.sock --node /run/b/gcrd.sock"


def _nodes(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Sequence[str]:
    if len(set(values)) < len(values):
        raise click.BadParameter("a node is named twice", ctx, param)
    return values


def _on_nodes(function: Command) -> Command:
    """The options of each command over nodes."""
    node = click.option(
        "--node",
        "nodes",
        metavar="SOCKET",
        multiple=True,
        callback=_nodes,
        help="The socket of a node's daemon, without Ray; again for each node of the job.",
    )
    return node(address_option(common_options(click.pass_obj(function))))


def _over_nodes(function: Command) -> Command:
    """These options, and the job."""
    return click.argument("job", metavar="JOB", callback=parse_job)(_on_nodes(function))


def _in_store(function: Command) -> Command:
    text = "Folder of the store on each node; default: the one that the node's daemon has."
    return click.option("--store", metavar="FOLDER", help=text)(function)


@click.command(
    "checkpoint",
    epilog=examples(
        "gcr cluster checkpoint train",
        "gcr cluster checkpoint train --image night --stop",
        f"gcr cluster checkpoint train {BY_SOCKET}",
    ),
)
@click.option("--data-only", is_flag=True, help="Free the device data only; the contexts stay on the devices.")
@click.option("--image", metavar="NAME", callback=parse_name, help="Write an image, a part of it on each node.")
@click.option("--stop", is_flag=True, help="Save the processes in the image as well, with CRIU, and end them.")
@click.option("--leave-running", is_flag=True, help="Save the processes in the image as well, and let all run on.")
@click.option(
    "--allow",
    type=click.Choice(ALLOWED),
    multiple=True,
    help="With --stop or --leave-running: let CRIU save what it refuses otherwise, in this way; again for more.",
)
@_in_store
@_over_nodes
def checkpoint(
    options: Options, job: str, nodes: Sequence[str], address: str | None, store: str | None, **chosen: Any
) -> int:
    """Suspend JOB on every node at one cut, or let it run on on every node.

    Each node runs its part of the job under gcr and under this name. No node is touched before every node has admitted
    the checkpoint, and none hands its memory over before all processes of all nodes stand still. Where a node fails,
    all others run again.

    With --image each node has a part of the image in its own store. The image counts once every part is on disk, and
    takes the place of an earlier one of this name. `gcr cluster restore --image NAME` brings the job back.
    """
    request = _request(job, new_cut(), options, store, **chosen)
    links = _links(job, nodes, address, options)
    return _shown("checkpoint", options, lambda: _over(links).checkpoint(request))


def _request(
    job: str,
    cut: str,
    options: Options,
    store: str | None,
    image: str | None,
    data_only: bool,
    stop: bool,
    leave_running: bool,
    allow: tuple[str, ...],
) -> CheckpointRequest:
    """Returns the request of each node's part. Raises UsageError."""
    if image and options.key_named:
        text = "no key goes to the nodes, so an image over nodes is in no encrypted store"
        raise UsageError(text, hint="--store FOLDER without a key, on a disk of each node that is encrypted itself")
    return CheckpointRequest(
        target=job,
        cut=cut,
        timeout=options.timeout,
        backend=options.backend,
        image=cut_name(image, cut) if image else None,
        store=_whole_path(store),
        data_only=data_only,
        stop=stop,
        processes=leave_running,
        leave_running=leave_running,
        allow=allow,
    )


def _whole_path(store: str | None) -> str | None:
    """Returns a folder of each node. Raises UsageError for one that is not named by its whole path."""
    if store is not None and not PurePath(store).is_absolute():
        raise UsageError(f"{store!r} is no place on every node: its whole path is")
    return store


@click.command(
    "restore",
    epilog=examples(
        "gcr cluster restore train",
        "gcr cluster restore --image night",
        f"gcr cluster restore train {BY_SOCKET}",
    ),
)
@click.argument("job", metavar="[JOB]", required=False, callback=parse_name)
@click.option("--image", metavar="NAME", callback=parse_name, help="The job of this image, from a part on each node.")
@_in_store
@_on_nodes
def restore(
    options: Options,
    job: str | None,
    image: str | None,
    nodes: Sequence[str],
    address: str | None,
    store: str | None,
) -> int:
    """Bring JOB back on every node, or leave it suspended on every node.

    Refused unless every node has it suspended by the same cut, or every node by none. No gate opens before every node
    has its memory back.

    With --image the newest cut comes back of which every part is on a node. A job that was stopped comes back with its
    processes; where a node fails they end again, and the image is as it was.
    """
    if (job is None) == (image is None):
        raise UsageError("either a job, or --image NAME", hint="gcr cluster restore train")
    if image is None:
        request = RestoreRequest(target=str(job), cut=new_cut(), timeout=options.timeout, backend=options.backend)
        links = _links(str(job), nodes, address, options)
        return _shown("restore", options, lambda: _over(links).restore(request))
    there, name = _all_links(nodes, address), _whole_path(store)

    def of_root(root: Root) -> RestoreRequest:
        return RestoreRequest(
            target=root.job,
            cut=new_cut(),
            timeout=options.timeout,
            backend=options.backend,
            image=root.name,
            store=name,
            revive=True,
        )

    return _shown("restore", options, lambda: _over(there).restore_image(image, name, of_root))


@click.command("recover", epilog=examples("gcr cluster recover train", f"gcr cluster recover train {BY_SOCKET}"))
@_over_nodes
def recover(options: Options, job: str, nodes: Sequence[str], address: str | None) -> int:
    """Settle JOB after the coordinator of a cut has died: say where it stands, and leave no mix.

    A cut that stands on every node is left as it is, suspended or stopped into an image. Else the job is made to run on
    every node: suspended and stopped parts are restored, and those that wait for other nodes give up.
    """
    request = RestoreRequest(target=job, timeout=options.timeout, backend=options.backend)
    links = _links(job, nodes, address, options, recovers=True)
    return _shown("recover", options, lambda: _over(links).recover(request))


def _all_links(sockets: Sequence[str], address: str | None) -> Links:
    """Returns the nodes that the command line names, else all of the cluster at hand."""
    if sockets and address:
        raise UsageError("--address is of a Ray cluster, --node of a node without one: choose one")
    if sockets:
        return {socket: SocketLink(Path(socket)) for socket in sockets}
    return {node.name: CarriedLink(node) for node in plugins.cluster(address).nodes()}


def _links(job: str, sockets: Sequence[str], address: str | None, options: Options, recovers: bool = False) -> Links:
    """Returns the nodes that the command line names, else those of the cluster at hand that have the job.

    recovers: also those that do not answer, which may have a part of it, and those where it was stopped into an image;
    else the error of one that does not answer is raised
    """
    links = _all_links(sockets, address)
    if sockets:
        return links
    found = plugins.cluster(address).nodes()
    known = asked(found, options)
    unheard = [error for error in known.values() if isinstance(error, GcrError)]
    if unheard and not recovers:
        raise unheard[0]
    parts = {
        name: link
        for name, link in links.items()
        if _has_part(known[name], job) or (recovers and _was_stopped(link, job))
    }
    if len(parts) == len(unheard):
        raise NoSuchJob(f"no node of the cluster has a job {job!r}", hint="gcr cluster status")
    return parts


def _was_stopped(link: Link, job: str) -> bool:
    try:
        return link.parts(PartsRequest(job=job)).stopped
    except GcrError:
        return False


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
    by += f", image {report.image}" if report.image else ""
    return f"{report.job} · {where} on {plural(len(report.nodes), 'node')}{by}, after {report.wall_s:.2f} s"


def _line(node: NodeReport) -> str:
    simulated = "SIMULATED " if node.report and node.report.simulated else ""
    why = f": {node.error['message']}" if node.error else ""
    return f"  {simulated}{node.node} · {node.place}{why}"
