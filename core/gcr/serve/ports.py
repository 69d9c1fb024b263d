"""Ports of servers that are free on the loopback interface."""

import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"


def free_port(taken: Collection[int]) -> int:
    """Returns a port that no program listens on just now, and that is not among `taken`. Raises OSError."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
