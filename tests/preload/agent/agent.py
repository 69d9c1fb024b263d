"""One agent, as a daemon asks it. What the agent asks (kReleased, kLetGo) is answered on a thread of its own.

So a freeing thread never waits for a test.
"""

import array
import fcntl
import os
import queue
import socket
import struct
import termios
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from packets import (
    COPY,
    COPY_RECORD,
    COUNT,
    DEVICE,
    ERROR,
    EXPORT_REPLY,
    EXPORT_REQUEST,
    FAILED,
    HANDLE,
    ID_LIST,
    KINDS,
    MAPPING,
    OCCUPIED,
    QUIESCE,
    REPLY,
    STAGE,
    STATUS,
    UNCOVERED,
    UNKNOWN,
    Handle,
    Hello,
    Refused,
    Status,
    frame,
    handles_in,
    receive,
)
from patience import PATIENCE, wait_for


@dataclass
class Agent:
    """One connection of one agent. `held`: handles that it exported to us and we have not closed."""

    link: socket.socket
    hello: Hello
    transaction: int = 7
    held: dict[int, int] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    released: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # requests that told so
    let_go: list[bytes] = field(default_factory=list)  # UUIDs of devices that had no room
    answer_questions: bool = True
    refuses: int = 0  # so many releases, before it hears of any
    reads: threading.Event = field(default_factory=threading.Event)  # cleared: it is stopped, and reads nothing
    on_let_go: Callable[[], None] = lambda: None
    _replies: "queue.Queue[tuple[int, int, bytes, list[int]] | None]" = field(default_factory=queue.Queue)
    _request: int = 100
    _asked: tuple[int, int] = (0, 0)
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
                    self._hold(payload, fds)  # here, in the order of arrival: a release may be right behind it
                if kind & REPLY:
                    self._replies.put((kind, request, payload, fds))
                else:
                    self._question(kind, request, payload)
        except (EOFError, OSError):
            self._replies.put(None)

    def _hold(self, payload: bytes, fds: list[int]) -> None:
        """Takes the descriptors of an export. A handle that is kept has none: we hold it since it came back."""
        left = iter(fds)
        for handle in handles_in(payload):
            if handle.kept:
                assert handle.id in self.held
                continue
            if handle.unexportable:
                continue
            if handle.id in self.held:
                os.close(self.held[handle.id])
            self.held[handle.id] = next(left)
        assert next(left, None) is None

    def _question(self, kind: int, request: int, payload: bytes) -> None:
        if kind == KINDS["released"] and self.refuses:
            self.refuses -= 1
            self.link.send(frame(FAILED, request, ERROR.pack(UNKNOWN, 0, 0, 0, b"too many requests at once")))
            return
        if kind == KINDS["released"]:
            _, count, _ = ID_LIST.unpack_from(payload)
            ids = struct.unpack_from(f"<{count}Q", payload, ID_LIST.size)
            for gone in ids:
                fd = self.held.pop(gone, -1)
                if fd >= 0:
                    os.close(fd)
            self.released.extend(ids)
            self.waiting.append(request)
        elif kind == KINDS["let_go"]:
            uuid, occupied, _ = OCCUPIED.unpack(payload)
            assert occupied == 1
            self.let_go.append(uuid)
            self.on_let_go()
        self._asked = kind, request
        if self.answer_questions:
            self.answer_late()

    def answer_all(self) -> None:
        """Every release that was told, those that were answered before among them."""
        for request in self.waiting:
            self.link.send(frame(REPLY | KINDS["released"], request))

    def answer_late(self) -> None:
        """The last question."""
        kind, request = self._asked
        self.link.send(frame(REPLY | kind, request))

    # ---- asking -----------------------------------------------------------------------------------------------
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

    # ---- each request -------------------------------------------------------------------------------------------
    def status(self) -> Status:
        payload, _ = self.ask("status", b"")
        (phase, flags, transaction, generation, covered, allocations, pinned, handles, contexts, devices, uncovered,
         captures, in_flight, calls) = STATUS.unpack_from(payload)  # fmt: skip
        at = STATUS.size
        found = [DEVICE.unpack_from(payload, at + i * DEVICE.size) for i in range(devices)]
        at += devices * DEVICE.size
        lacking = [UNCOVERED.unpack_from(payload, at + i * UNCOVERED.size) for i in range(uncovered)]
        assert at + uncovered * UNCOVERED.size == len(payload)
        return Status(
            phase, flags, transaction, generation, covered, allocations, pinned, handles, contexts, captures, in_flight,
            calls, found, {reason: (bool(refuse), size, count) for reason, refuse, size, count in lacking},
        )  # fmt: skip

    def export_batch(self, after: int = 0, limit: int = 253) -> tuple[list[Handle], int, bool]:
        payload, _ = self.ask("export", EXPORT_REQUEST.pack(self.transaction, after, limit, 0))
        transaction, last, count, more, record_size, _ = EXPORT_REPLY.unpack_from(payload)
        assert transaction == self.transaction
        assert record_size == HANDLE.size
        assert len(payload) == EXPORT_REPLY.size + count * HANDLE.size
        return handles_in(payload), last, bool(more)

    def export(self, after: int = 0, limit: int = 253) -> list[Handle]:
        found: list[Handle] = []
        more = True
        while more:
            batch, after, more = self.export_batch(after, limit)
            found += batch
        assert [handle.id for handle in found] == sorted({handle.id for handle in found})
        return found

    def mappings(self) -> list[tuple[int, int, int, int, int, int]]:
        found: list[tuple[int, int, int, int, int, int]] = []
        cursor, more = 0, 1
        while more:
            payload, _ = self.ask("mappings", EXPORT_REQUEST.pack(self.transaction, cursor, 100, 0))
            _, cursor, count, more, record_size, _ = EXPORT_REPLY.unpack_from(payload)
            assert record_size == MAPPING.size
            found += [MAPPING.unpack_from(payload, EXPORT_REPLY.size + i * MAPPING.size) for i in range(count)]
        return found

    def quiesce(self, deadline_ms: int = 10000, pulse_ms: int = 20) -> None:
        self.ask("quiesce", QUIESCE.pack(self.transaction, deadline_ms, pulse_ms))

    def count(self, kind: str) -> tuple[int, int]:
        transaction, handles, size = COUNT.unpack(self.ask(kind)[0])
        assert transaction == self.transaction
        return handles, size

    def give_back(self, ids: Sequence[int], batch: int = 253) -> None:
        for first in range(0, len(ids), batch):
            part = ids[first : first + batch]
            body = ID_LIST.pack(self.transaction, len(part), 0) + struct.pack(f"<{len(part)}Q", *part)
            self.ask("import", body, [self.held[i] for i in part])

    def stage(self, fds: Sequence[int], offset: int = 0, total: int | None = None) -> None:
        self.ask("stage", STAGE.pack(self.transaction, offset, len(fds) if total is None else total), fds)

    def copy(self, way: str, pieces: Sequence[tuple[int, int, int, int, int]], fds: Sequence[int]) -> tuple[int, int]:
        """Pieces: id, offset in the handle, offset in the segment, bytes, segment. Until all are done."""
        done = moved = 0
        while done < len(pieces):
            rows = b"".join(COPY_RECORD.pack(*piece, 0) for piece in pieces[done:])
            body = COPY.pack(self.transaction, len(pieces) - done, COPY_RECORD.size, 1000, 0) + rows
            _, count, size = COUNT.unpack(self.ask(way, body, fds)[0])
            assert 0 < count <= len(pieces) - done
            done, moved = done + count, moved + size
        return done, moved

    def moved(self, *moves: tuple[bytes, bytes]) -> None:
        """UUIDs, old and new."""
        body = struct.pack("<QII", self.transaction, len(moves), 32)
        self.ask("moved", body + b"".join(old + new for old, new in moves))

    def create(self, ids: Sequence[int]) -> tuple[int, int]:
        body = ID_LIST.pack(self.transaction, len(ids), 0) + struct.pack(f"<{len(ids)}Q", *ids)
        _, count, size = COUNT.unpack(self.ask("create", body)[0])
        return count, size

    # ---- whole ways ----------------------------------------------------------------------------------------------
    def take(self) -> tuple[int, int]:
        """PREPARE to HAND OVER: everything is ours afterwards."""
        handles = self.export()
        self.quiesce()
        self.export(after=handles[-1].id if handles else 0)
        return self.count("hand_over")

    def bring_back(self) -> None:
        """IMPORT to RESUME. What came back is kept by us as well: the driver does not export it a second time."""
        self.give_back(sorted(self.held))
        self.count("map")
        self.ask("resume")
        self.kept |= set(self.held)

    def undo_prepare(self) -> None:
        self.ask("resume")
        for gone in set(self.held) - self.kept:
            fd = self.held.pop(gone, -1)  # a late free may have taken it meanwhile
            if fd >= 0:
                os.close(fd)

    def drop_held(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()

    def cycle(self) -> tuple[int, int]:
        taken = self.take()
        self.bring_back()
        return taken

    def close(self) -> None:
        if self.link.fileno() < 0:
            return
        self.reads.set()
        self.link.shutdown(socket.SHUT_RDWR)
        if self._thread:
            self._thread.join(5)
        self.link.close()
        self.drop_held()
