"""Trust: a peer may speak for the daemon if it is of our own user, of root, or of the user that `daemon_uid` names.

The kernel says whose process listens (SO_PEERCRED). It is asked before the first byte, by every end: commands and
supervisors here, agents in shim/src/core/channel.cpp. A path proves nothing: another user may have made its folder.
"""

import os
import socket
from pathlib import Path

from gcr.errors import UnsafeRuntime
from gcr.protocol.seqpacket import connect, peer_identity

_ROOT = 0


def connect_to_daemon(path: Path, timeout: float) -> socket.socket:
    """A connection to a daemon that is obeyed.

    Raises DaemonUnavailable, DeadlinePassed after `timeout` seconds, UnsafeRuntime where another user listens.
    """
    sock = connect(path, timeout)
    try:
        check_daemon(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def check_daemon(sock: socket.socket) -> None:
    """Raises UnsafeRuntime where the other end belongs to a user that is not obeyed."""
    uid = peer_identity(sock).uid
    if uid in (os.getuid(), _ROOT):
        return
    from gcr.config import load  # needed here alone

    if uid != load().daemon_uid:
        text = f"the socket is served by user {uid}, neither you nor root"
        raise UnsafeRuntime(text, hint="look at GCR_SOCKET; docs/security.md tells of containers")
