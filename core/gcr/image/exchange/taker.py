"""A taker, started by a pull: `python -m gcr.image.exchange.taker SOCKET MEMORY`, which are two descriptors.

It asks peers for bytes of packs, and writes them as they came into memory that it shares with the pull, which compares
them. OpenSSL returns 16 KiB at a time, and a thread takes Python's lock after each; each taker has a lock of its own.
It has no key, and opens no file of the store. It ends with the socket.
"""

import gcr.starting

# isort: split
import mmap
import os
import socket
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange.fetching import (
    MOST_PACKET,
    Begin,
    Drop,
    Fetch,
    Fetched,
    FromTaker,
    Moving,
    Ready,
    packed,
    to_taker,
)
from gcr.image.exchange.lines import Line, NotSent, bearer

gcr.starting.imported()

_MOST_AT_ONCE = 64


class Taker:
    """Serves one pull. The main thread calls `obey`; each request has a thread."""

    def __init__(self, channel: socket.socket, memory: int, begin: Begin) -> None:
        """`memory`: the descriptor of the shared memory. Raises OSError, UsageError."""
        self._channel, self._peers, self._headers = channel, begin.peers, bearer(begin.token)
        self._tls = begin.trust.context
        self._memory = memoryview(mmap.mmap(memory, begin.bytes))
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, "gcr-taker")
        self._lock = Lock()  # of the next two: no line is aborted that rests
        self._resting: dict[int, list[Line]] = defaultdict(list)
        self._working: dict[int, Line] = {}

    def greet(self, lines: int) -> None:
        """Begins to make connections to the first peer: the first requests need not wait for them."""
        for _ in range(lines):
            self._pool.submit(self._greet, Line(self._peers[0], self._tls))

    def _greet(self, line: Line) -> None:
        try:
            line.greet(self._headers)
        except (NotSent, PeerUnusable):  # the first request says why
            line.close()
            return
        with self._lock:
            self._resting[0].append(line)

    def obey(self, order: Fetch | Drop) -> None:
        with self._lock:
            match order:
                case Drop(number):
                    if line := self._working.get(number):
                        line.abort()
                case Fetch(number, peer):
                    resting = self._resting[peer]
                    line = self._working[number] = resting.pop() if resting else Line(self._peers[peer], self._tls)
                    self._pool.submit(self._fetch, order, line)

    def _fetch(self, order: Fetch, line: Line) -> None:
        try:
            self._say(self._fetched(order, line))
        except BaseException:
            os._exit(1)  # the pull sees the socket close, and takes the bytes itself

    def _fetched(self, order: Fetch, line: Line) -> Fetched:
        into, is_good = self._memory[order.at : order.at + order.size], False
        try:
            line.read(order.path, {**self._headers, **order.headers}, into, lambda: self._say(Moving(order.number)))
            is_good = True
            return Fetched(order.number)
        except NotSent as error:
            return Fetched(order.number, refused=str(error))
        except PeerUnusable as error:
            return Fetched(order.number, refused=error.message, hint=error.hint or "")
        finally:
            with self._lock:
                del self._working[order.number]
                if is_good and not line.aborted:
                    self._resting[order.peer].append(line)
                else:
                    line.close()

    def _say(self, message: FromTaker) -> None:
        self._channel.send(packed(message))


def main(argv: list[str]) -> int:
    channel, memory = socket.socket(fileno=int(argv[0])), int(argv[1])
    begin = to_taker.decode(channel.recv(MOST_PACKET))
    assert isinstance(begin, Begin)
    taker = Taker(channel, memory, begin)
    taker.greet(begin.lines)
    channel.send(packed(Ready()))
    while packet := channel.recv(MOST_PACKET):
        order = to_taker.decode(packet)
        assert not isinstance(order, Begin)
        taker.obey(order)
    os._exit(0)  # threads may read from peers still


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
