"""Unix SOCK_SEQPACKET sockets with descriptors: listen, connect, one packet out, one packet in."""

import array
import errno
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from gcr.errors import DaemonUnavailable, DeadlinePassed, NotRead, PeerGone, UnsafeRuntime
from gcr.protocol.wire import MAX_DESCRIPTORS, MAX_FRAME
from gcr.runtime import open_own_directory

_BACKLOG = 128
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_RETRY_S = 0.02


class PeerIdentity(Struct, frozen=True):
    """The process that connected, by the kernel's word, at the time of connecting."""

    pid: int
    uid: int
    gid: int


def peer_identity(sock: socket.socket) -> PeerIdentity:
    return PeerIdentity(*struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def listen(path: Path, shared: bool = False) -> socket.socket:
    """Returns a listening socket of mode 0600 in a directory of this user's alone; it replaces a stale socket.

    shared: every user may connect, and enter the directory; the caller asks the kernel for each peer's user.
    Raises UnsafeRuntime for the directory, OSError (EADDRINUSE) when another process listens already.
    """
    folder = open_own_directory(path.parent, enterable=shared)
    try:
        _remove_stale(path)
        return _listening(path, folder, shared)
    finally:
        os.close(folder)


def _listening(path: Path, folder: int, shared: bool) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before bind, which gives the node this mode: no window, no umask
        with _address(path) as address:
            sock.bind(address)
        _check_place(path, folder)
        if shared:
            os.chmod(path.name, 0o666, dir_fd=folder)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_place(path: Path, folder: int) -> None:
    """Raises UnsafeRuntime where the path led to another folder when the socket was made."""
    try:
        made = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        made = None
    if made is None or not stat.S_ISSOCK(made.st_mode):
        raise UnsafeRuntime(f"{path.parent} was replaced while the socket was made", hint=f"ls -ld {path.parent}")


def connect(path: Path, timeout: float) -> socket.socket:
    """Connects to the listener at `path`. Raises DaemonUnavailable, DeadlinePassed after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        while not _try_connect(sock, path):
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"{path} did not take the connection in {timeout:g} s")
            time.sleep(_RETRY_S)
    except BaseException:
        sock.close()
        raise
    return sock


def send_packet(sock: socket.socket, packet: bytes, fds: Sequence[int], timeout: float) -> None:
    """Send one packet. Raises NotRead when the peer makes no room in `timeout` seconds, PeerGone."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    deadline = time.monotonic() + timeout
    while True:
        try:
            sock.sendmsg([packet], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return
        except BlockingIOError:
            _wait_for_room(sock, deadline)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF):
                raise PeerGone("the connection is closed") from error
            raise


def receive_packet(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """Wait for one packet: its bytes (none at the end of the connection), its descriptors, all CLOEXEC, and whether
    this process had no room for some of them. A packet longer than a frame comes cut, one byte too long."""
    packet, ancillary, flags, _ = sock.recvmsg(MAX_FRAME + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, list(fds), bool(flags & socket.MSG_CTRUNC)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _wait_for_room(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    if left <= 0 or not poll.poll(left * 1000):
        raise NotRead("the peer does not read")


def _try_connect(sock: socket.socket, path: Path) -> bool:
    try:
        with _address(path) as address:
            sock.connect(address)
    except BlockingIOError:  # its backlog is full
        return False
    except OSError as error:
        raise DaemonUnavailable(f"no daemon listens at {path}: {error.strerror}") from error
    return True


def _remove_stale(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EADDRINUSE, "something that is not a socket is in the way", str(path))
        try:
            connect(path, 1.0).close()
        except DaemonUnavailable:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, "another process listens already", str(path))


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """An address for `path` that fits the 108 bytes of sun_path, however long the path is."""
    if len(os.fsencode(path)) < 108:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
