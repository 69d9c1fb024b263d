"""Sockets that listen on a network."""

import ipaddress
import socket

from gcr.errors import UsageError
from gcr.serveerrors import PortInUse

BACKLOG = 1024


def listen_address(text: str, example: str) -> tuple[str, int]:
    """Returns the host, an IP address, and the port of `--listen`. Raises UsageError, with the example."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise UsageError(f"--listen {text!r} is no IP address with a port, such as {example}")
    return host, number


def listening(host: str, port: int, hint: str) -> socket.socket:
    """Returns a socket that listens there; port 0 is any free one. Raises PortInUse with this hint."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise PortInUse(f"cannot listen on {host}, port {port}: {error.strerror}", hint=hint) from error
    return made


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
