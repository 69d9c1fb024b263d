"""`gcr exchange`: other nodes pull images from this node's store."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcr import background
from gcr.cli.exchanging import token_of
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, say, success
from gcr.errors import UsageError
from gcr.image.store.location import store_path
from gcr.serveerrors import PortInUse

if TYPE_CHECKING:
    from ssl import SSLContext

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "exchange",
    epilog=examples(
        "gcr exchange --listen 0.0.0.0:7443 --token-file token --tls-cert node.pem --tls-key node.key",
        "gcr exchange --detach --note /run/user/1000/exchange.json --token-file token",
    ),
)
@click.option(
    "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:7443", show_default=True, help="An IP address, and a port."
)
@click.option("--token-file", metavar="FILE", type=_FILE, help="The token that nodes show; a file that only you read.")
@click.option("--tls-cert", metavar="FILE", type=_FILE, help="This node's certificate, with those above it.")
@click.option("--tls-key", metavar="FILE", type=_FILE, help="The key of the certificate.")
@click.option("--store", metavar="DIR", help="Where images are kept, instead of the setting `store`.")
@click.option("-d", "--detach", is_flag=True, help="In the background: the command ends once the exchange listens.")
@click.option("--note", metavar="FILE", type=_FILE, help="Has its pid and address while it runs, as JSON.")
@common_options
@click.pass_obj
def command(
    options: Options,
    listen: str,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    store: str | None,
    detach: bool,
    note: Path | None,
) -> None:
    """Offer the images of this node to other nodes, which pull them with `gcr pull --from`.

    The store is only read, and an encrypted one needs no key here. Images that this node pulls are offered piece by
    piece while they come. SIGTERM ends it. With --json one object is printed once it listens.
    """
    from gcr.image.exchange import address, server
    from gcr.listening import listen_address, listening, url_of

    path = store_path(store)
    host, port = listen_address(listen, "0.0.0.0:7443")
    tls = _tls(tls_cert, tls_key)
    if tls is None and not address.is_loopback(host):
        text = f"--listen {listen} is reached from a network, and there is no TLS"
        raise UsageError(text, hint="--tls-cert and --tls-key, or an address such as 127.0.0.1:7443")
    token = token_of(token_file)
    if detach:
        files = {"--token-file": token_file, "--tls-cert": tls_cert, "--tls-key": tls_key, "--note": note}
        _say(options, _begun(["--listen", listen, "--store", str(path)], files, options))
        return
    with ExitStack() as until:
        place = _place(note, until) if note else None
        sock = until.enter_context(listening(host, port, "another port as --listen, or end the program that has it"))
        url = url_of(sock, "tls" if tls else "tcp")
        told = background.Note(os.getpid(), url, _name_of(tls_cert))

        def listens() -> None:
            if place:
                place.write(told)
            _say(options, {"url": url, "store": str(path), "pid": told.pid})

        server.run(path, server.Listening(sock, tls, token), listens)


def _tls(certificate: Path | None, key: Path | None) -> "SSLContext | None":
    """Raises UsageError for one without the other."""
    from gcr.image.exchange.address import server_tls

    if certificate and key:
        return server_tls(certificate, key)
    if certificate or key:
        raise UsageError("--tls-cert and --tls-key go together")
    return None


def _begun(words: Sequence[str], files: Mapping[str, Path | None], options: Options) -> Mapping[str, Any]:
    """Returns the words of an exchange that was started, as its JSON has them. Raises its error, DeadlinePassed."""
    from gcr.cli.detaching import begun

    named = [word for option, file in files.items() if file for word in (option, str(file.absolute()))]
    return begun("exchange", [*words, *named], options.timeout)


def _place(note: Path, until: ExitStack) -> background.Place:
    """Raises PortInUse where an exchange runs that the file names, UsageError for a file that cannot be written."""
    try:
        return until.enter_context(background.taken(note))
    except background.Runs as running:
        where = f" at {running.note.url}, pid {running.note.pid}" if running.note else ""
        raise PortInUse(f"an exchange runs already{where}: {note}", hint="end that one first") from None
    except OSError as error:
        raise UsageError(f"--note: {error}") from error


def _name_of(certificate: Path | None) -> str | None:
    from gcr.cluster.keys import name_of

    return name_of(certificate.read_bytes()) if certificate else None


def _say(options: Options, fields: Mapping[str, Any]) -> None:
    if options.json:
        print_json(success("exchange", {name: fields[name] for name in ("url", "store", "pid")}))
    else:
        say(f"gcr: offering {fields['store']} at {fields['url']}")
