"""A connection to an agent: the daemon's requests and their replies. A thread of its own reads."""

import array
import fcntl
import queue
import socket
import struct
import termios
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from packets import ERROR, FAILED, KINDS, REPLY, Refused, frame, receive
from patience import PATIENCE, wait_for

Packet = tuple[int, int, bytes, list[int]]  # as receive returns it


@dataclass
class Connection:
    """Sends requests and waits for replies; hands questions, and the descriptors of exports, to its owner."""

    link: socket.socket
    hold: Callable[[bytes, Sequence[int]], None]
    hear: Callable[[int, int, bytes], None]
    transaction: int = 7
    reads: threading.Event = field(default_factory=threading.Event)  # cleared: it is stopped, and reads nothing
    _replies: "queue.Queue[Packet | None]" = field(default_factory=queue.Queue)
    _request: int = 100
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.reads.set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                self.reads.wait()
                kind, request, payload, fds = receive(self.link)
                if kind == REPLY | KINDS["export"]:
                    self.hold(payload, fds)  # here, in the order of arrival: a release may be right behind it
                if kind & REPLY:
                    self._replies.put((kind, request, payload, fds))
                else:
                    self.hear(kind, request, payload)
        except (EOFError, OSError):
            self._replies.put(None)

    def send(self, kind: str, payload: bytes = b"", fds: Sequence[int] = ()) -> int:
        self._request += 1
        packet = frame(KINDS[kind], self._request, payload, len(fds))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.link.sendmsg([packet], ancillary)
        return self._request

    def begin(self, kind: str, payload: bytes) -> int:
        """A request that the agent has read when this returns, and has hardly more than begun with."""
        request = self.send(kind, payload)
        assert wait_for(lambda: not struct.unpack("i", fcntl.ioctl(self.link, termios.TIOCOUTQ, bytes(4)))[0])
        return request

    def reply(self, kind: str, request: int, patience: float = PATIENCE) -> tuple[bytes, list[int]]:
        answer = self._replies.get(timeout=patience)
        if answer is None:
            raise EOFError
        got, about, payload, fds = answer
        assert about == request
        if got == FAILED:
            code, vendor, _, _, message = ERROR.unpack_from(payload)
            raise Refused(code, vendor, message.rstrip(b"\0").decode(), payload[ERROR.size :])
        assert got == REPLY | KINDS[kind]
        return payload, fds

    def ask(self, kind: str, payload: bytes | None = None, fds: Sequence[int] = ()) -> tuple[bytes, list[int]]:
        named = struct.pack("<Q", self.transaction) if payload is None else payload
        return self.reply(kind, self.send(kind, named, fds))

    def close(self) -> None:
        self.reads.set()
        self.link.shutdown(socket.SHUT_RDWR)
        if self._thread:
            self._thread.join(5)
        self.link.close()
