"""`gcr exchange`: other nodes pull images from this node's store."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcr.cli.exchanging import exchange_libraries, token_of
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, say, success
from gcr.errors import UsageError
from gcr.image.store.location import store_path

if TYPE_CHECKING:
    from ssl import SSLContext

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "exchange",
    epilog=examples("gcr exchange --listen 0.0.0.0:7443 --token-file token --tls-cert node.pem --tls-key node.key"),
)
@click.option(
    "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:7443", show_default=True, help="An IP address, and a port."
)
@click.option("--token-file", metavar="FILE", type=_FILE, help="The token that nodes show; a file that only you read.")
@click.option("--tls-cert", metavar="FILE", type=_FILE, help="This node's certificate, with those above it.")
@click.option("--tls-key", metavar="FILE", type=_FILE, help="The key of the certificate.")
@click.option("--store", metavar="DIR", help="Where images are kept, instead of the setting `store`.")
@common_options
@click.pass_obj
def command(
    options: Options,
    listen: str,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    store: str | None,
) -> None:
    """Offer the images of this node to other nodes, which pull them with `gcr pull --from`.

    The store is only read, and an encrypted one needs no key here. Images that this node pulls are offered piece by
    piece while they come. SIGTERM ends it. With --json one object is printed once it listens. Needs the extra
    `exchange`.
    """
    with exchange_libraries("gcr exchange"):
        from gcr.image.exchange import address, server
    from gcr.listening import listen_address, listening, url_of

    path = store_path(store)
    host, port = listen_address(listen, "0.0.0.0:7443")
    tls = _tls(tls_cert, tls_key)
    if tls is None and not address.is_loopback(host):
        text = f"--listen {listen} is reached from a network, and there is no TLS"
        raise UsageError(text, hint="--tls-cert and --tls-key, or an address such as 127.0.0.1:7443")
    token = token_of(token_file)
    with listening(host, port, "another port as --listen, or end the program that has it") as sock:
        url = url_of(sock, "tls" if tls else "tcp")
        server.run(path, server.Listening(sock, tls, token), lambda: _say(options, url, path))


def _tls(certificate: Path | None, key: Path | None) -> "SSLContext | None":
    """Raises UsageError for one without the other."""
    from gcr.image.exchange.address import server_tls

    if certificate and key:
        return server_tls(certificate, key)
    if certificate or key:
        raise UsageError("--tls-cert and --tls-key go together")
    return None


def _say(options: Options, url: str, store: Path) -> None:
    if options.json:
        print_json(success("exchange", {"url": url, "store": str(store)}))
    else:
        say(f"gcr: offering {store} at {url}")
