"""A daemon of an earlier version hands over to one of this version, as after an upgrade.

Its end is like a death: supervisors and agents keep what is suspended, its successor finds it there and in the journal.
The successor is started first and waits for the seat, so that it is there when the other one leaves.
"""

import logging
import re

from gcr.errors import PeerGone, UsageError, WrongState, WrongVersion
from gcr.protocol.wire import VERSION
from gcr.rendezvous.client import FORCE, Client
from gcr.rendezvous.launch import await_socket, begin
from gcr.version import __version__

log = logging.getLogger(__name__)

ENDS_WITHIN = 15.0  # seconds, with its workers


def take_over(client: Client) -> None:
    """When this returns a daemon serves, of this version unless another starter was faster. Raises WrongVersion."""
    which = f"the daemon (pid {client.daemon_pid}) is of version {client.daemon_version}, this is {__version__}"
    if order(client.daemon_version) > order(__version__):
        raise WrongVersion(f"{which}, which is older and may not read what that one wrote", hint="use the newer gcr")
    successor = begin("--succeed")
    try:
        client.request("hand_over", {"version": __version__, "wire": VERSION}, timeout=ENDS_WITHIN)
    except UsageError as error:  # it is too old to know the command
        successor.terminate()
        raise WrongVersion(which, hint=FORCE) from error
    except (WrongState, WrongVersion) as error:
        successor.terminate()
        raise WrongVersion(f"{which}; it does not hand over: {error.message}", hint=error.hint) from error
    except PeerGone:
        log.debug("it has ended before it answered")
    client.wait_closed(ENDS_WITHIN)
    await_socket(successor)


def order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Sorts versions: by their numbers; what comes before a release (`.dev`, `a`, `b`, `rc`) before it."""
    found = re.match(r"(\d+(?:\.\d+)*)(.*)", version)
    numbers, rest = found.groups() if found else ("0", version)
    return tuple(map(int, numbers.split("."))), rest.startswith(("+", ".post")) or not rest, rest
