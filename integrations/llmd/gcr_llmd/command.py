"""The program `gcr-llm-d-agent`: one agent for the jobs of this user on this machine."""

import ipaddress
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gcr.errors import GcrError, LibraryMissing
from gcr.listening import listen_address
from gcr.version import __version__

log = logging.getLogger("gcr.llmd")

DEFAULT = "127.0.0.1:9001"
OPERATIONS_S = 20.0  # for operations under way at the end; Kubernetes kills after 30
CALLS_S = 2.0  # for calls that are being answered then


@click.command("gcr-llm-d-agent")
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT, show_default=True, help="An IP address, and a port.")
@click.version_option(__version__)
def command(listen: str) -> None:
    """Serve llm-d's SnapshotAgentService with the jobs of gcr on this machine (docs/serve.md).

    A job_id is the name of a job. The service has no authentication: any program that reaches the address can suspend
    and restore jobs, so the default is one that this machine alone reaches.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    try:
        serve(*listen_address(listen, DEFAULT))
    except GcrError as error:
        click.echo(f"gcr-llm-d-agent: {error.message}{f'; {error.hint}' if error.hint else ''}", err=True)
        sys.exit(error.exit)


@contextmanager
def _libraries() -> Iterator[None]:
    """Raises LibraryMissing where one of the extra `llm-d` is."""
    try:
        yield
    except ImportError as error:
        text = f"gcr-llm-d-agent needs the Python module {error.name}: {error}"
        raise LibraryMissing(text, hint="pip install 'gpu-cr[llm-d]'") from error


def serve(host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT; operations under way then have OPERATIONS_S to end.

    Raises PortInUse, LibraryMissing.
    """
    with _libraries():
        from gcr_llmd.node import GcrJobs
        from gcr_llmd.operations import Operations
        from gcr_llmd.service import Agent, listening

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    operations = Operations()
    server, address = listening(Agent(GcrJobs(), operations), host, port)
    if not ipaddress.ip_address(host).is_loopback:
        log.warning("%s has no authentication: any program that reaches it can suspend and restore jobs", address)
    click.echo(f"gcr-llm-d-agent: listening at {address}")
    ended.wait()
    if not operations.close(OPERATIONS_S):  # clients may ask for their results meanwhile
        log.warning("operations under way are left to gcr's daemon, which takes them back")
    server.stop(CALLS_S).wait()
