"""Holds TCP sockets in a child, and becomes the program that its arguments name: `connected.py PORT PROGRAM...`

The child listens at the port that is in the file `listens`. It answers each line there with a count of lines, with what
came back by a connection with itself, and with what came by one with PORT, unless that is 0. A connection that is over
gives `closed`.
"""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path


def asked_outside(outside: socket.socket, line: bytes) -> bytes:
    with suppress(OSError):
        outside.sendall(line)
        return outside.recv(100) or b"closed"
    return b"closed"


def asked_inside(near: socket.socket, far: socket.socket, line: bytes) -> bytes:
    with suppress(OSError):
        near.sendall(line)
        return far.recv(100) or b"closed"
    return b"closed"


def serve(port: int) -> None:
    listening, inner = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(inner.getsockname())
    far, _ = inner.accept()
    outside = socket.create_connection(("127.0.0.1", port)) if port else None
    Path("port").write_text(str(listening.getsockname()[1]))
    Path("port").rename("listens")
    count = 0
    while True:
        caller, _ = listening.accept()
        with caller:
            line = caller.recv(100)
            count += 1
            said = [b"%d" % count, asked_inside(near, far, line)]
            caller.sendall(b" ".join(said + ([asked_outside(outside, line)] if outside else [])))


if os.fork() == 0:
    serve(int(sys.argv[1]))
while not Path("listens").exists():
    os.sched_yield()
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
