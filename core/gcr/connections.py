"""Connections of TCP that CRIU has locked for a dump, and left so as it was killed.

CRIU keeps packets from a connection that it saves, and has its socket in repair mode: the kernel sends nothing, and a
call that reads or writes fails. Both stay where CRIU is killed, and the connection would be dead for good. CRIU's rules
are in a table of nftables (gcr.nftables), or two of iptables for each connection.
"""

import ctypes
import errno
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gcr import nftables
from gcr.listing import listed
from gcr.nftables import Connection

log = logging.getLogger(__name__)

_PIDFD_GETFD = 438  # number of the system call, on every architecture
_REPAIR, _OFF = 19, 0  # TCP_REPAIR, TCP_REPAIR_OFF
_OVER = (errno.EBADF, errno.ESRCH)  # the descriptor, or the process
_SECONDS = 10.0  # for iptables
_PROGRAMS = ("iptables", "ip6tables")
_UNMARKED = ("-m", "mark", "!", "--mark", "0xC114")  # packets that CRIU does not send itself; in this place


def tables() -> frozenset[str]:
    """Returns CRIU's tables of now; none where the kernel has no nftables."""
    with suppress(OSError):
        return nftables.tables()
    return frozenset()


def let_go(pids: Collection[int], former: Collection[str]) -> int:
    """Undoes what a CRIU that was killed has left of these processes. Returns how many sockets were in repair mode.

    The processes have no tracer, and are in this network namespace. former: CRIU's tables of before; one of these, and
    one with none of the connections, belongs to another dump. Raises OSError.
    """
    with ExitStack() as own:
        held = [own.enter_context(sock) for pid in pids for sock in _sockets_of(pid)]
        ours = {found for sock in held if (found := _connection(sock))}
        _remove_table(ours, former)
        for program in filter(shutil.which, _PROGRAMS):
            for connection in ours:
                if (":" in connection[0]) == (program == _PROGRAMS[1]):
                    _remove_rules(program, connection)
        return sum(map(_repaired, held))


def _connection(sock: socket.socket) -> Connection | None:
    """Returns the connection of a socket; None for one that is not connected, or no more."""
    try:
        (source, port, *_), (destination, port_there, *_) = sock.getsockname(), sock.getpeername()
    except OSError:
        return None
    return nftables.plain(source), port, nftables.plain(destination), port_there


def _repaired(sock: socket.socket) -> bool:
    """Ends the repair mode of a socket. Returns whether it was in it."""
    if not sock.getsockopt(socket.IPPROTO_TCP, _REPAIR):
        return False
    sock.setsockopt(socket.IPPROTO_TCP, _REPAIR, _OFF)
    return True


def _remove_table(ours: Collection[Connection], former: Collection[str]) -> None:
    """Removes CRIU's table of these connections, if there is one.

    The program at the other end may be saved at the same time. Its table has the same connections, and is not ours.
    """
    theirs, found = {*ours, *map(_back, ours)}, list[str]()
    for table in sorted(tables() - {*former}) if ours else ():
        with suppress(FileNotFoundError):  # CRIU has removed it just now
            if nftables.connections(table) & theirs:
                found.append(table)
    if len(found) > 1:
        raise OSError(errno.EEXIST, f"one of these tables of nftables is of another dump: {', '.join(found)}")
    for table in found:
        with suppress(FileNotFoundError):
            nftables.remove(table)
            log.warning("removed %s, which CRIU has left behind", table)


def _remove_rules(program: str, connection: Connection) -> None:
    """Removes CRIU's rules for a connection, if they are there."""
    for chain, (source, port, destination, port_there) in (("INPUT", _back(connection)), ("OUTPUT", connection)):
        where = ["--source", source, "--sport", str(port), "--destination", destination, "--dport", str(port_there)]
        words = [program, "-w", "-t", "filter", "-D", chain, "--protocol", "tcp", *_UNMARKED, *where, "-j", "DROP"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
        if done.returncode == 0:
            log.warning("removed a rule of %s, which CRIU has left behind: %s", program, " ".join(words[5:]))


def _back(connection: Connection) -> Connection:
    source, port, destination, port_there = connection
    return destination, port_there, source, port


def _sockets_of(pid: int) -> Iterator[socket.socket]:
    """Yields a duplicate of each TCP socket of the process. The caller closes them. Raises OSError."""
    try:
        process, numbers = os.pidfd_open(pid), _socket_numbers(pid)
    except (ProcessLookupError, FileNotFoundError):  # it has ended
        return
    try:
        for number in numbers:
            if (sock := _duplicated(process, number)) is not None:
                yield sock
    finally:
        os.close(process)


def _socket_numbers(pid: int) -> Sequence[int]:
    found = list[int]()
    for path in listed(Path(f"/proc/{pid}/fd")):
        with suppress(OSError):  # it is closed by now
            if str(path.readlink()).startswith("socket:"):
                found.append(int(path.name))
    return found


def _duplicated(process: int, number: int) -> socket.socket | None:
    """Returns a duplicate of the process's TCP socket. None if the socket is closed by now, or not of TCP."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(_PIDFD_GETFD, process, number, 0)
    if fd < 0:
        code = ctypes.get_errno()
        if code in _OVER:
            return None
        raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")
    sock = socket.socket(fileno=fd)
    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.proto == socket.IPPROTO_TCP:
        return sock
    sock.close()
    return None
