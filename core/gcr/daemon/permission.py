"""Permissions of users to ask the daemon. docs/security.md has the table; each line of it is a test.

The daemon's own user and root rule: they may ask for anything. Another user, admitted by --allow-uid, may register jobs
of its own, and sees and moves those and its own processes alone. Its images are written and read by a helper that runs
as that user, so its store lies where that user may write.
"""

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import PurePath

from msgspec import Struct, field

from gcr.errors import NotOurs
from gcr.protocol.seqpacket import PeerIdentity, peer_identity

_PEER_GROUPS, _MOST_GROUPS = 59, 65536  # SO_PEERGROUPS (Linux 4.13), which socket.py does not name
_ROOT = 0
_RULERS_ALONE = frozenset({"stop", "recover", "hand_over", "migrate"})
_HANDED_ON = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "GCR_LOG_LEVEL", "GCR_NATIVE_DIR")


class Caller(Struct, frozen=True):
    """A peer, by the kernel's word at the time of connecting. `groups`: its supplementary ones."""

    uid: int = field(default_factory=os.getuid)
    gid: int = field(default_factory=os.getgid)
    groups: tuple[int, ...] = ()

    @property
    def rules(self) -> bool:
        return self.uid in (_ROOT, os.getuid())

    def may_use(self, owner: int) -> bool:
        return self.rules or self.uid == owner

    def check_command(self, command: str) -> None:
        """Raises NotOurs for a command that concerns every user's jobs."""
        if command in _RULERS_ALONE and not self.rules:
            raise NotOurs(f"user {self.uid} may not ask this daemon to {command}", hint="ask its user, or root")

    def check_owner(self, owner: int, what: str) -> None:
        """Raises NotOurs for what belongs to another user."""
        if not self.may_use(owner):
            raise NotOurs(f"{what} belongs to another user", hint="run gcr as that user")


OURSELVES = Caller()
"""The daemon itself, if no other caller asked."""


def caller_of(sock: socket.socket) -> Caller:
    """Raises OSError."""
    peer = peer_identity(sock)
    return Caller(peer.uid, peer.gid, _groups(sock, peer))


def _groups(sock: socket.socket, peer: PeerIdentity) -> tuple[int, ...]:
    """Returns the groups of the peer; none for the daemon's own user, and none where the kernel does not say."""
    if peer.uid == os.getuid():
        return ()
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, _MOST_GROUPS * 4)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


class Acting(Struct, frozen=True):
    """The user that a helper runs as: the daemon's own (`caller` None), or the caller."""

    caller: Caller | None = None

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Less what concerns the daemon's own user, where it is for another one."""
        if self.caller is None:
            return dict(own)
        return {**{name: own[name] for name in _HANDED_ON if name in own}, "HOME": str(PurePath("/nonexistent"))}

    @property
    def user(self) -> int | None:
        return self.caller.uid if self.caller else None

    @property
    def group(self) -> int | None:
        return self.caller.gid if self.caller else None

    @property
    def extra_groups(self) -> list[int] | None:
        return list(self.caller.groups) if self.caller else None


AS_OURSELVES = Acting()


def acting_for(caller: Caller) -> Acting:
    """Raises NotOurs where this daemon cannot act as that user."""
    if caller.rules:
        return AS_OURSELVES
    if os.geteuid() != _ROOT:
        text = f"this daemon of user {os.getuid()} can neither write nor read images as user {caller.uid}"
        raise NotOurs(text, hint="a daemon of that user, or root's, can")
    return Acting(caller)
