"""Unix sockets of a network namespace and their other ends, as the kernel lists them (sock_diag(7))."""

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gcr import netlink

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # a type of message
_SHOW_NAME, _SHOW_PEER, _SHOW_WAITING = 1, 4, 8
_NAME, _PEER, _WAITING = 0, 2, 3  # attributes
_REQUEST = struct.Struct("=BBHIIIII")  # family, protocol, padding, states, inode, show, cookie
_SOCKET = struct.Struct("=BBBBIII")  # family, type, state, padding, inode, cookie
_ANY_STATE = 0xFFFFFFFF
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class UnixSocket(Struct, frozen=True):
    """A Unix socket. `peer`: inode of its other end; 0 while that is not accepted, None without one.

    `waiting`: of a listener, the inodes of sockets that have connected and are not accepted yet.
    """

    inode: int
    type: int
    name: str
    peer: int | None
    waiting: tuple[int, ...]


def unix_sockets(pid: int) -> Mapping[int, UnixSocket]:
    """Returns the sockets of a process's network namespace by inode. Raises OSError."""
    if Path(f"/proc/{pid}/ns/net").stat().st_ino == Path("/proc/thread-self/ns/net").stat().st_ino:
        return _asked()
    return _asked_within(pid)


def _asked_within(pid: int) -> Mapping[int, UnixSocket]:
    """Asks in a thread of its own, which enters the namespace and ends there."""
    found: list[Mapping[int, UnixSocket]] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            _enter(pid)
            found.append(_asked())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=ask, name="gcr-unix-diag")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _enter(pid: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _NEW_NETWORK):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def _asked() -> Mapping[int, UnixSocket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as sock:
        show = _SHOW_NAME | _SHOW_PEER | _SHOW_WAITING
        body = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY_STATE, 0, show, 0, 0)
        sock.settimeout(netlink.SECONDS)
        sock.send(netlink.message(_BY_FAMILY, netlink.REQUEST | netlink.DUMP, body))
        return {each.inode: each for each in map(_parsed, netlink.bodies(sock))}


def _parsed(message: bytes) -> UnixSocket:
    _, type, _, _, inode, _, _ = _SOCKET.unpack_from(message)
    found = dict(netlink.attributes(message[_SOCKET.size :]))
    peer = found.get(_PEER)
    waiting = found.get(_WAITING, b"")
    return UnixSocket(
        inode,
        type,
        _name(found.get(_NAME, b"")),
        struct.unpack("=I", peer)[0] if peer else None,
        struct.unpack(f"={len(waiting) // 4}I", waiting),
    )


def _name(raw: bytes) -> str:
    """Returns a path, or an abstract name with @ for its leading zero."""
    shown = b"@" + raw[1:] if raw.startswith(b"\0") else raw.rstrip(b"\0")
    return shown.decode(errors="replace")
