"""A peer of one connection at a time that answers as a test says, rightly or not."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gcr.image.exchange.address import PeerAddress

BODY = bytes(range(256)) * 4096
HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n"

Answer = Callable[[socket.socket], object]  # True: the connection ends


@contextmanager
def peer(*answers: Answer) -> Iterator[tuple[PeerAddress, list[int]]]:
    """Yields the address of a peer, and the numbers of its connections, one for each request that it answered."""
    asked, left = list[int](), iter(answers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            for number, first in enumerate(left, 1):
                made, answer = listening.accept()[0], first
                with made:
                    made.settimeout(10)
                    while answer and request(made):
                        asked.append(number)
                        answer = None if answer(made) else next(left, None)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield PeerAddress("127.0.0.1", listening.getsockname()[1], False), asked


def request(made: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        some = made.recv(4096)
        if not some:
            return b""
        found += some
    return found


def whole(made: socket.socket) -> None:
    made.sendall(HEAD % len(BODY) + BODY)


def whole_and_closes(made: socket.socket) -> bool:
    whole(made)
    return True


def says(text: bytes) -> Answer:
    return lambda made: made.sendall(text) or True
