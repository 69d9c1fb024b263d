"""`gcr cluster up`, `status` and `down`: gcr on the nodes of a cluster."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from gcr.cli import text
from gcr.cli.clusterexchange import offered
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, say, success
from gcr.cluster import plugins
from gcr.cluster.plugins import Node, NodeFacts
from gcr.clustererrors import NodeUnreachable, naming
from gcr.errors import GcrError
from gcr.protocol.jsonbody import error_to_json

PATIENCE_S = 60.0  # for a node to answer; it may have to start its daemon
AT_ONCE = 64  # nodes that are asked at the same time

Found = Mapping[str, NodeFacts | GcrError]


def address_option(function: Callable[..., Any]) -> Callable[..., Any]:
    text = "Address of the cluster, as Ray has it; default: RAY_ADDRESS, else the one that this machine is part of."
    return click.option("--address", metavar="ADDRESS", help=text)(function)


@click.command("up", epilog=examples("gcr cluster up", "gcr cluster up --address 10.0.0.1:6379"))
@click.option("--no-exchange", is_flag=True, help="Offer no images: `gcr pull --from cluster` gets none.")
@click.option(
    "--exchange-port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Of each node's exchange, the same on all; default: any free one.",
)
@address_option
@common_options
@click.pass_obj
def up(options: Options, address: str | None, exchange_port: int, no_exchange: bool) -> None:
    """Make gcr reachable on every node: an actor of Ray's there, which starts the node's daemon and its `gcr exchange`.

    Jobs are as before. Again after nodes were added. All nodes need the same version of gcr and the same user. A node
    without the extra `exchange` offers no images, and is named.
    """
    found = plugins.cluster(address).up()
    known = alike(found, options)
    for groups in plugins.differences(known):
        say(f"gcr: the nodes differ, which only an image that goes from one to another may notice: {groups}")
    if not no_exchange:
        known = offered(found, known, exchange_port)
    _show("up", found, known, options)


@click.command("status", epilog=examples("gcr cluster status", "gcr cluster status --json"))
@address_option
@common_options
@click.pass_obj
def status(options: Options, address: str | None) -> None:
    """Show each node of the cluster, and gcr on it."""
    found = plugins.cluster(address).nodes()
    _show("status", found, asked(found, options), options)


@click.command("down", epilog=examples("gcr cluster down"))
@address_option
@common_options
@click.pass_obj
def down(options: Options, address: str | None) -> None:
    """End gcr's actors, and the exchanges of images. Jobs and daemons stay as they are, suspended jobs too."""
    ended = plugins.cluster(address).down()
    if options.json:
        print_json(success("cluster down", {"nodes": ended}))
    else:
        print_text(f"gcr's actors have ended on {text.plural(ended, 'node')}")


def alike(found: Sequence[Node], options: Options) -> Mapping[str, NodeFacts]:
    """Returns what each node says of itself, by its name. Raises the error of one, and NodesDiffer."""
    known = dict[str, NodeFacts]()
    for name, facts in asked(found, options).items():
        if isinstance(facts, GcrError):
            raise facts
        known[name] = facts
    plugins.refuse_different(known)
    return known


def asked(found: Sequence[Node], options: Options) -> Found:
    """Returns what each node says of itself, or its error, by its name."""
    patience = options.timeout or PATIENCE_S

    def ask(node: Node) -> NodeFacts | GcrError:
        try:
            return node.facts(patience)
        except GcrError as error:
            return error if isinstance(error, NodeUnreachable) else naming(node.name, error)

    with ThreadPoolExecutor(AT_ONCE, "gcr-nodes") as pool:
        return dict(zip((node.name for node in found), pool.map(ask, found), strict=True))


def _show(command: str, found: Sequence[Node], known: Found, options: Options) -> None:
    if options.json:
        print_json(success(f"cluster {command}", {"nodes": [_row(node, known[node.name]) for node in found]}))
        return
    head = ("NODE", "ADDRESS", "GCR", "DAEMON", "DEVICES", "DRIVER", "EXCHANGE", "JOBS")
    print_text(text.table(head, [_cells(node, known[node.name]) for node in found]))


def _row(node: Node, facts: NodeFacts | GcrError) -> Mapping[str, object]:
    row: dict[str, object] = {"node": node.name, "address": node.address}
    if isinstance(facts, GcrError):
        return row | {"reachable": False, "error": error_to_json(facts)}
    return row | {"reachable": True, **facts.to_json()}


def _cells(node: Node, facts: NodeFacts | GcrError) -> tuple[str, ...]:
    if isinstance(facts, GcrError):
        return (node.name, node.address, *["-"] * 5, facts.message)
    jobs = ", ".join(f"{job.job} {job.state}" for job in facts.jobs)
    hardware = (", ".join(facts.devices) or "none", ", ".join(facts.drivers) or "none")
    where = (node.name, node.address, facts.version, str(facts.daemon_pid))
    return (*where, *hardware, facts.exchange or "none", jobs or "none")
