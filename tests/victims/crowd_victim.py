"""A program of very many processes, each with a little device memory of its own.

`ready`; then a line for a line: `spawn COUNT`: so many more processes · anything else: the sum of what they hold, asked
of each. Each ends with the first one.
"""

import os
import socket
import sys

from dialogue import say

WORDS = 1024


def child(number: int, asked: socket.socket) -> None:
    from cuda_device import CudaDevice

    device = CudaDevice()
    address = device.allocate(8 * WORDS)
    device.write(address, number.to_bytes(8, "little") * WORDS)
    asked.send(b"ready")
    while asked.recv(16):
        held = device.read(address, 8 * WORDS)
        same = held == held[:8] * WORDS
        asked.send(str(int.from_bytes(held[:8], "little") if same else -1).encode())


def spawn(children: list[socket.socket]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for other in (ours, *children):
            other.close()
        sys.stdin.close()
        child(len(children) + 1, theirs)
        os._exit(0)
    theirs.close()
    children.append(ours)


def heard(children: list[socket.socket]) -> list[str]:
    return [each.recv(64).decode() for each in children]


def main() -> None:
    children: list[socket.socket] = []
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["spawn", count]:
                before = len(children)
                for _ in range(int(count)):
                    spawn(children)
                say(str(heard(children[before:]).count("ready")))
            case _:
                for each in children:
                    each.send(b"?")
                say(str(sum(map(int, heard(children)))))


if __name__ == "__main__":
    main()
