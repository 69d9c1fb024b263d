"""A daemon of an earlier version hands over to one of this version, as after an upgrade.

Its end is like a death: supervisors and agents keep what is suspended, its successor finds it there and in the journal.
The successor is started first and waits for the seat, so that it is there when the other one leaves.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Protocol

from gcr.api.requests import HandOverRequest
from gcr.errors import PeerGone, UsageError, WrongState, WrongVersion
from gcr.protocol.wire import VERSION
from gcr.rendezvous.launch import await_socket, begin
from gcr.version import __version__

log = logging.getLogger(__name__)

ENDS_WITHIN = 15.0  # seconds, with its workers
FORCE = "gcr daemon stop --force: every job stays as it is, and the next command starts a daemon of this version"


class Other(Protocol):
    """A daemon of another version, by what it said in its greeting."""

    @property
    def daemon_pid(self) -> int: ...
    @property
    def daemon_version(self) -> str: ...


class Predecessor(Other, Protocol):
    """A daemon of another version, as its client sees it."""

    def request(self, command: str, body: Mapping[str, object], *, timeout: float) -> Mapping[str, Any]: ...
    def wait_closed(self, timeout: float) -> object: ...


def take_over(client: Predecessor) -> None:
    """Brings up a daemon of this version, unless another starter was faster. Raises WrongVersion."""
    which = _difference(client)
    if order(client.daemon_version) > order(__version__):
        raise WrongVersion(f"{which}, which is older and may not read what that one wrote", hint="use the newer gcr")
    successor, request = begin("--succeed"), HandOverRequest(version=__version__, wire=VERSION)
    try:
        client.request(request.op, request.to_json(), timeout=ENDS_WITHIN)
    except UsageError as error:  # it is too old to know the command
        successor.terminate()
        raise refusal(client) from error
    except (WrongState, WrongVersion) as error:
        successor.terminate()
        raise WrongVersion(f"{which}; it does not hand over: {error.message}", hint=error.hint) from error
    except PeerGone:
        log.debug("it has ended before it answered")
    client.wait_closed(ENDS_WITHIN)
    await_socket(successor)


def refusal(client: Other) -> WrongVersion:
    """Returns the error for a daemon of another version that stays."""
    return WrongVersion(_difference(client), hint=FORCE)


def _difference(client: Other) -> str:
    return f"the daemon (pid {client.daemon_pid}) is of version {client.daemon_version}, this is {__version__}"


def order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Sorts versions: by their numbers; what comes before a release (`.dev`, `a`, `b`, `rc`) before it."""
    found = re.match(r"(\d+(?:\.\d+)*)(.*)", version)
    numbers, rest = found.groups() if found else ("0", version)
    return tuple(map(int, numbers.split("."))), rest.startswith(("+", ".post")) or not rest, rest
