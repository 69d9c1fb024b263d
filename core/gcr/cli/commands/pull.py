"""`gcr pull`: an image is copied from a store elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcr.cli.exchanging import token_of
from gcr.cli.moving import move
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.errors import UsageError
from gcr.image.store.location import store_path

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource
    from gcr.image.exchange.pulling import Peers
    from gcr.image.remote.push import Moved
    from gcr.image.remote.transfer import Transfer

CLUSTER = "cluster"  # as --from
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "pull",
    epilog=examples(
        "gcr pull warm s3://bucket/images",
        "gcr pull warm file:///mnt/backup --json",
        "gcr pull warm --from tls://node1:7443 --from tls://node2:7443 --token-file token",
        "gcr pull warm --from cluster",
    ),
)
@click.argument("name")
@click.argument("url", required=False)
@click.option(
    "--from",
    "peers",
    metavar="tls://HOST:PORT",
    multiple=True,
    help="A node where gcr exchange runs; again. Or `cluster`: all nodes of the Ray cluster at hand.",
)
@click.option("--token-file", metavar="FILE", type=_FILE, help="The token of these nodes.")
@click.option("--tls-ca", metavar="FILE", type=_FILE, help="Trust their certificates by this authority alone.")
@store_option
@common_options
@click.pass_obj
def command(
    options: Options,
    name: str,
    url: str | None,
    peers: Sequence[str],
    token_file: Path | None,
    tls_ca: Path | None,
    store: str | None,
) -> None:
    """Copy an image from a store elsewhere: s3://BUCKET/PREFIX, gs://…, az://…, or file:///FOLDER.

    With --from it comes from nodes where `gcr exchange` runs, each piece from one that has it; from URL, if there is
    one, what no node has. Nodes that pull it at the same time have pieces for each other. `--from cluster` asks the
    nodes that `gcr cluster up` has made offer their images, with keys that it gave them.

    Every byte is compared with what the manifest says of it before the image is there. What the store has, also of a
    pull that was cut short, is not fetched again, but for what was found damaged. A URL needs the extra `remote`,
    --from needs `exchange`.
    """
    path, key = store_path(store), options.key()
    if not peers:
        if url is None:
            raise UsageError("an image comes from a URL, or from nodes: --from tls://HOST:PORT")
        if token_file or tls_ca:
            raise UsageError("--token-file and --tls-ca are about nodes: --from tls://HOST:PORT")
        there = url
        move("pull", options, path, name, url, lambda transfer: _pulled(path, key, name, there, transfer))
        return
    found = _peers(peers, token_file, tls_ca)
    move("pull", options, path, name, url, lambda transfer: _exchanged(path, key, name, found, url, transfer))


def _pulled(path: Path, key: "KeySource", name: str, url: str, transfer: "Transfer") -> "Moved":
    from gcr.image.crypto.ciphers import cipher_of
    from gcr.image.remote.pull import pull

    return pull(path, name, url, transfer, cipher_of(key.key()))


def _peers(given: Sequence[str], token_file: Path | None, tls_ca: Path | None) -> "Peers":
    """Raises UsageError; of a cluster PeerUnusable, and as `gcr cluster status`."""
    from gcr.image.exchange.address import PeerAddress, Trust
    from gcr.image.exchange.pulling import Peers

    if CLUSTER in given:
        if len(set(given)) > 1 or token_file or tls_ca:
            raise UsageError("--from cluster stands alone: its nodes have keys of their own")
        from gcr.cli.clusterexchange import peers_of_cluster

        return peers_of_cluster()
    addresses = [*dict.fromkeys(map(PeerAddress.parsed, given))]
    return Peers(addresses, token_of(token_file), Trust.of(tls_ca))


def _exchanged(
    path: Path, key: "KeySource", name: str, peers: "Peers", url: str | None, transfer: "Transfer"
) -> "Moved":
    from gcr.image.crypto.ciphers import cipher_of
    from gcr.image.exchange.pulling import pull_from_peers

    return pull_from_peers(path, name, peers, url, transfer, cipher_of(key.key()))
