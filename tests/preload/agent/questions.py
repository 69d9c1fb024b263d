"""Questions of an agent, kReleased, kLetGo and kDescriptor, and the daemon's answers: at once, late, or never."""

import array
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from custody import Custody
from packets import ERROR, FAILED, ID_LIST, KINDS, OCCUPIED, REPLY, UNKNOWN, frame


@dataclass
class Questions:
    """What an agent asked. A release takes the handles out of `custody` before it is answered."""

    link: socket.socket
    custody: Custody
    released: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # requests that told so
    described: list[int] = field(default_factory=list)  # handles of which it asked for a descriptor
    let_go: list[bytes] = field(default_factory=list)  # UUIDs of devices that had no room
    answered: bool = True
    refuses: int = 0  # so many releases, before it hears of any
    on_let_go: Callable[[], None] = lambda: None
    _asked: tuple[int, int] = (0, 0)

    def hear(self, kind: int, request: int, payload: bytes) -> None:
        if kind == KINDS["released"] and self.refuses:
            self.refuses -= 1
            self.link.send(frame(FAILED, request, ERROR.pack(UNKNOWN, 0, 0, 0, b"too many requests at once")))
            return
        if kind == KINDS["released"]:
            self._release(request, payload)
        elif kind == KINDS["let_go"]:
            self._let_go(payload)
        elif kind == KINDS["descriptor"]:
            self._describe(request, payload)
            return
        self._asked = kind, request
        if self.answered:
            self.answer_late()

    def _release(self, request: int, payload: bytes) -> None:
        _, count, _ = ID_LIST.unpack_from(payload)
        ids = struct.unpack_from(f"<{count}Q", payload, ID_LIST.size)
        self.custody.release(ids)
        self.released.extend(ids)
        self.waiting.append(request)

    def _describe(self, request: int, payload: bytes) -> None:
        (id,) = struct.unpack_from("<Q", payload, ID_LIST.size)
        self.described.append(id)
        fds = array.array("i", [self.custody.held[id]])
        answer = frame(REPLY | KINDS["descriptor"], request, b"", len(fds))
        self.link.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

    def _let_go(self, payload: bytes) -> None:
        uuid, occupied, _ = OCCUPIED.unpack(payload)
        assert occupied == 1
        self.let_go.append(uuid)
        self.on_let_go()

    def answer_all(self) -> None:
        """Every release that was told, those that were answered before among them."""
        for request in self.waiting:
            self.link.send(frame(REPLY | KINDS["released"], request))

    def answer_late(self) -> None:
        """The last question."""
        kind, request = self._asked
        self.link.send(frame(REPLY | kind, request))
