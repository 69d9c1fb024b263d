"""Sockets that listen on a network."""

import socket

from gcr.serveerrors import PortInUse

BACKLOG = 1024


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
