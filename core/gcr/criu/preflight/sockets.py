"""Sockets that CRIU cannot save: those of protocols that it does not know, and connections of TCP."""

import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from msgspec import Struct

from gcr.criu.preflight.facts import Facts, Opened
from gcr.criu.preflight.namespaces import namespaces
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options
from gcr.criu.preflight.unixsockets import of_unix_sockets

_PROTOCOL = "system.sockprotoname"  # the attribute of a socket that names its protocol
_UNIX = "UNIX"
_IP = frozenset(("TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6", "PACKET"))
_SAVED = _IP | {"NETLINK"}
_STATES = (  # numbered from 1
    *("ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE"),
    *("CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"),
)
_REFUSED = frozenset(("SYN_RECV", "TIME_WAIT", "NEW_SYN_RECV"))  # with any option
_ASKS_NO_CREDENTIALS = (4, 2)  # the first CRIU that does not ask IP sockets for SO_PASSCRED


class Connection(Struct, frozen=True):
    """A line of /proc/net/tcp. `waiting`: connections that a listening socket has yet to accept."""

    state: str
    local: str
    remote: str
    waiting: int

    def __str__(self) -> str:
        if self.state == "LISTEN":
            return f"{self.local} with connections to accept: {self.waiting}"
        return f"{self.local} to {self.remote}, {self.state}"


def saves_ip_sockets(version: tuple[int, int, int]) -> bool:
    """Returns whether CRIU of this version saves IP sockets on this kernel: before 4.2 not from Linux 6.16 on."""
    if version >= _ASKS_NO_CREDENTIALS:
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
        except OSError:
            return False
    return True


def of_sockets(facts: Facts, options: Options) -> Iterator[Obstacle]:
    """Yields the sockets that CRIU does not save with these options."""
    held = [(file, _protocol(file)) for file in facts.opened if stat.S_ISSOCK(file.mode)]
    known = [(file, protocol) for file, protocol in held if protocol is not None]
    yield from _of_protocols(known, options)
    yield from _of_connections([file for file, protocol in known if protocol.startswith("TCP")], options)
    yield from of_unix_sockets([file for file, protocol in known if protocol.startswith(_UNIX)], facts.pids, options)


def _protocol(file: Opened) -> str | None:
    """Returns the protocol's name, empty where the kernel does not say; None for a socket that is closed by now."""
    try:
        return os.getxattr(file.link, _PROTOCOL).rstrip(b"\0").decode()
    except OSError:
        return "" if file.is_still_open() else None


def _of_protocols(held: Sequence[tuple[Opened, str]], options: Options) -> Iterator[Obstacle]:
    for file, protocol in held:
        if protocol not in _SAVED and not protocol.startswith(_UNIX):
            yield Obstacle(file.pid, Kind.PROTOCOL, f"{file.name} of {protocol or 'an unknown protocol'}")
        elif protocol in _IP and not options.ip_sockets:
            yield Obstacle(file.pid, Kind.OLD_CRIU, f"{file.name} of {protocol}")


def _of_connections(held: Sequence[Opened], options: Options) -> Iterator[Obstacle]:
    connections = {inode: each for pid in namespaces(held) for inode, each in connections_seen_by(pid).items()}
    for file in held:
        found = connections.get(file.inode)  # none: not bound, or closed
        if found and (kind := kind_of(found, options)):
            yield Obstacle(file.pid, kind, f"{file.name} of TCP, {found}")


def kind_of(connection: Connection, options: Options) -> Kind | None:
    """Returns the kind of obstacle that a TCP socket in this state is."""
    if connection.state == "LISTEN":
        return Kind.WAITING if connection.waiting and not options.skip_in_flight else None
    if connection.state in _REFUSED:
        return Kind.HALF_OPEN
    return None if connection.state == "CLOSE" or options.tcp_established or options.tcp_close else Kind.TCP


def connections_seen_by(pid: int) -> Mapping[int, Connection]:
    """Returns the TCP sockets of a process's network namespace by inode; empty where it is gone."""
    lines = (line for name in ("tcp", "tcp6") for line in _lines(Path(f"/proc/{pid}/net/{name}")))
    return dict(map(parsed, lines))


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):  # also a kernel without IPv6
        return ()


def parsed(line: str) -> tuple[int, Connection]:
    """Returns the inode and the connection of a line of /proc/net/tcp or tcp6."""
    fields = line.split()
    state, waiting = _STATES[int(fields[3], 16) - 1], int(fields[4].partition(":")[2], 16)
    return int(fields[9]), Connection(state, _address(fields[1]), _address(fields[2]), waiting)


def _address(text: str) -> str:
    """Returns an address and its port; the kernel writes words of four bytes, each with its last byte first."""
    words, _, port = text.partition(":")
    raw = bytes.fromhex(words)
    address = ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    return f"{_shown(address)}:{int(port, 16)}"


def _shown(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or f"[{address}]")
