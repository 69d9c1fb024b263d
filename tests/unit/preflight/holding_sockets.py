"""Sockets that `holding.py` holds."""

import socket

from holding_base import NEW_NETWORK, call, folder, given, keep, libc


def unix_pair():
    first, second = socket.socketpair()
    keep(second)
    return keep(first)


def connected(kind=socket.SOCK_STREAM, at=""):
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.connect(at or given)
    return keep(sock)


def unix_stream():
    return connected()


def unix_datagrams():
    return connected(socket.SOCK_DGRAM)


def unix_listener():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(f"{folder}/listener")
    sock.listen()
    return keep(sock)


def unix_connection_to_itself():
    unix_listener()
    return connected(at=f"{folder}/listener")


def unix_stream_from_another_network():
    call(libc.unshare, NEW_NETWORK)
    return connected()


def unix_stream_into_another_network():
    fd = connected()
    call(libc.unshare, NEW_NETWORK)
    return fd


def listener(family=socket.AF_INET):
    sock = socket.socket(family)
    sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    sock.listen()
    keep(sock)
    return sock


def tcp_listener():
    return listener().fileno()


def tcp_unbound():
    return keep(socket.socket())


def datagrams():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return keep(sock)


def tcp(family=socket.AF_INET):
    """Returns both ends of a connection, the accepted one first."""
    waiting = listener(family)
    client = socket.create_connection(waiting.getsockname()[:2])
    accepted = waiting.accept()[0]
    waiting.close()
    keep(client)
    keep(accepted)
    return accepted, client


def tcp_established():
    return tcp()[0].fileno()


def tcp6_established():
    return tcp(socket.AF_INET6)[0].fileno()


def tcp_closing():
    accepted, client = tcp()
    client.shutdown(socket.SHUT_WR)
    return accepted.fileno()


def tcp_connecting():
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", int(given)))
    return keep(sock)


def tcp_to_accept():
    waiting = listener()
    socket.create_connection(waiting.getsockname()).close()
    return waiting.fileno()


def netlink():
    return keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


def multipath():
    return keep(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))


def virtual_socket():
    return keep(socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
