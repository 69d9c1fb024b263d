"""`gcr cluster`: gcr on the nodes of a cluster, and jobs that run on several of them."""

import click

from gcr.cli import clustercuts, clusternodes, clusterrun
from gcr.cli.options import common_options, examples


@click.group("cluster", epilog=examples("gcr cluster up", "gcr cluster status", "gcr cluster down"))
@common_options
def command() -> None:
    """Reach gcr on every node of the Ray cluster at hand, and cut jobs that run on several (docs/cluster.md)."""


for each in (
    *(clusternodes.up, clusternodes.status, clusternodes.down, clusterrun.command),
    *(clustercuts.checkpoint, clustercuts.restore, clustercuts.recover),
):
    command.add_command(each)
