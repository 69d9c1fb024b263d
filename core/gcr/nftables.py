"""Tables of nftables in which CRIU keeps packets from the connections that it saves (CRIU 4.2, criu/netfilter.c).

    table inet CRIU-…       one for each dump
      set conns4, conns6    both directions of each connection: source, its port, destination, its port

CRIU removes the table with the end of a dump that fails, and with the restore. It stays if CRIU is killed.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from gcr import netlink

_NETFILTER = 12  # NETLINK_NETFILTER
_NFTABLES = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GET_TABLE, _DELETE_TABLE, _GET_ELEMENTS = _NFTABLES | 1, _NFTABLES | 2, _NFTABLES | 13
_BEGIN, _END = 16, 17  # types of the messages around a change
_INET = 1  # NFPROTO_INET
_TABLE_NAME = 1  # attribute of a table
_OF_TABLE, _OF_SET, _ELEMENTS = 1, 2, 3  # attributes of a list of elements
_FIRST = 1  # the attribute that an element, its key and its value are
_CRIUS = "CRIU-"
_SETS = {"conns4": 4, "conns6": 16}  # bytes of an address

Connection = tuple[str, int, str, int]
"""Source and its port, destination and its port. An address of IPv4 in IPv6 is one of IPv4."""


def tables() -> frozenset[str]:
    """Returns the names of CRIU's tables in this network namespace. Raises OSError where the kernel has no nftables."""
    with _asking() as sock:
        sock.send(netlink.message(_GET_TABLE, netlink.REQUEST | netlink.DUMP, _about(_INET)))
        found = (dict(netlink.attributes(body[4:]))[_TABLE_NAME] for body in netlink.bodies(sock))
        names = [name.rstrip(b"\0").decode(errors="surrogateescape") for name in found]
    return frozenset(name for name in names if name.startswith(_CRIUS))


def connections(table: str) -> frozenset[Connection]:
    """Returns the connections of a table in both directions. Raises OSError, FileNotFoundError once it is gone."""
    return frozenset(each for name, size in _SETS.items() for each in _elements(table, name, size))


def remove(table: str) -> None:
    """Removes a table with its rules. Raises OSError, FileNotFoundError once it is gone."""
    delete = _about(_INET) + netlink.attribute(_TABLE_NAME, _text(table))
    change = [
        netlink.message(_BEGIN, netlink.REQUEST, _about(0, _NFTABLES >> 8)),
        netlink.message(_DELETE_TABLE, netlink.REQUEST | netlink.ACKNOWLEDGE, delete),
        netlink.message(_END, netlink.REQUEST, _about(0, _NFTABLES >> 8)),
    ]
    with _asking() as sock:
        sock.send(b"".join(change))
        list(netlink.bodies(sock))


def _elements(table: str, name: str, size: int) -> Iterator[Connection]:
    which = netlink.attribute(_OF_TABLE, _text(table)) + netlink.attribute(_OF_SET, _text(name))
    with _asking() as sock:
        sock.send(netlink.message(_GET_ELEMENTS, netlink.REQUEST | netlink.DUMP, _about(_INET) + which))
        for body in netlink.bodies(sock):
            elements = dict(netlink.attributes(body[4:])).get(_ELEMENTS, b"")
            yield from (_connection(_inner(element), size) for _, element in netlink.attributes(elements))


def _inner(element: bytes) -> bytes:
    """Returns the value of the key of an element."""
    key = dict(netlink.attributes(element))[_FIRST]
    return dict(netlink.attributes(key))[_FIRST]


def _connection(value: bytes, size: int) -> Connection:
    """Returns a connection. `size`: of an address; a port is 2 bytes, and 2 more that are nothing."""
    source, port, destination, port_there = struct.unpack(f"!{size}sHxx{size}sHxx", value)
    return plain(source), port, plain(destination), port_there


def plain(address: bytes | str) -> str:
    """Returns an address in one way: of IPv4 also where it is within IPv6."""
    found = ip_address(address.partition("%")[0] if isinstance(address, str) else address)
    return str(getattr(found, "ipv4_mapped", None) or found)


def _about(family: int, subsystem: int = 0) -> bytes:
    return struct.pack("!BBH", family, 0, subsystem)


def _text(name: str) -> bytes:
    return name.encode(errors="surrogateescape") + b"\0"


@contextmanager
def _asking() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as sock:
        sock.settimeout(netlink.SECONDS)
        yield sock
