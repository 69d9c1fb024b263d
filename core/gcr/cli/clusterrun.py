"""`gcr cluster run`: a program as one job on several nodes."""

from pathlib import Path

import click

from gcr.cli import text
from gcr.cli.clusternodes import address_option, alike
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import print_json, print_text, success
from gcr.cluster import plugins, ranks
from gcr.cluster.plugins import Program


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog=examples("gcr cluster run --name train --nodes 4 -- torchrun --nproc-per-node 8 train.py"),
)
@click.option("--name", callback=parse_job, metavar="JOB", required=True, help="Name of the job, on every node.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes; default: all.")
@address_option
@click.argument("program", metavar="-- CMD...", nargs=-1, required=True)
@common_options
@click.pass_obj
def command(options: Options, name: str, nodes: int | None, address: str | None, program: tuple[str, ...]) -> None:
    """Start CMD under gcr on N nodes at once, detached, in a folder of this path: on all of them or on none.

    Each part learns its place by GCR_NODES and GCR_NODE_RANK, and by the variables that torchrun reads (PET_NNODES,
    PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT). `gcr logs` on a node has the output of its part.
    """
    found = plugins.cluster(address).nodes()
    facts = alike(found, options)
    begun = ranks.start(ranks.chosen(found, facts, name, nodes), name, Program(program, str(Path.cwd()), {}))
    if options.json:
        rows = [{"node": each.node, "rank": each.rank, "log": each.log} for each in begun]
        print_json(success("cluster run", {"job": name, "nodes": rows}))
    else:
        print_text(text.table(("NODE", "RANK", "LOG"), [(each.node, str(each.rank), each.log) for each in begun]))
