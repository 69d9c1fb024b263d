"""One agent, as a daemon asks it. What the agent asks is answered on the thread that reads (questions.py).

So a freeing thread never waits for a test.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from connection import Connection
from custody import Custody
from packets import (
    ADMIT,
    ALLOWED,
    CLOSE,
    COPY,
    COPY_RECORD,
    COUNT,
    DEVICE,
    EXPORT_REPLY,
    EXPORT_REQUEST,
    FOREIGN,
    GATE,
    HANDLE,
    ID_LIST,
    INCOMPLETE_LAUNCH,
    MADE,
    MAPPING,
    PARKED,
    QUIESCE,
    SHARED,
    SHARED_REPLY,
    STAGE,
    STATUS,
    UNCOVERED,
    Gate,
    Handle,
    Hello,
    Launch,
    Parked,
    Shared,
    Status,
    handles_in,
)
from questions import Questions


class Agent(Connection):
    """The requests that an agent serves, and whole ways of several. `custody`: handles that it exported to us."""

    def __init__(self, link: socket.socket, hello: Hello) -> None:
        self.hello = hello
        self.custody = Custody()
        self.questions = Questions(link, self.custody)
        super().__init__(link, self.custody.hold, self.questions.hear)

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

    def shared(self, limit: int = 100) -> tuple[int, list[Shared]]:
        """Returns the process's own name, and what it shares."""
        found: list[Shared] = []
        name, cursor, more = 0, 0, 1
        while more:
            payload, _ = self.ask("shared", EXPORT_REQUEST.pack(self.transaction, cursor, limit, 0))
            _, name, cursor, count, more, record_size, _ = SHARED_REPLY.unpack_from(payload)
            assert record_size == SHARED.size
            assert len(payload) == SHARED_REPLY.size + count * SHARED.size
            rows = SHARED.iter_unpack(payload[SHARED_REPLY.size :])
            found += [Shared(*row[:7], foreign=bool(row[7] & FOREIGN)) for row in rows]
        return name, found

    def quiesce(self, deadline_ms: int = 10000, pulse_ms: int = 20) -> None:
        self.ask("quiesce", QUIESCE.pack(self.transaction, deadline_ms, pulse_ms))

    def close_gate(self, close: int = 1) -> None:
        self.ask("close", CLOSE.pack(self.transaction, close, 0))

    def look(self) -> Gate:
        payload, _ = self.ask("look")
        _, admitted, unchanged, busy, in_flight, captures, held, parked, incomplete = GATE.unpack_from(payload)
        after = GATE.size + parked * PARKED.size
        behind = after + incomplete * INCOMPLETE_LAUNCH.size
        waiting = [Parked(*each[:4]) for each in PARKED.iter_unpack(payload[GATE.size : after])]
        launches = [
            Launch(signature, stream, launched, kernel.rstrip(b"\0").decode())
            for signature, stream, launched, _, kernel in INCOMPLETE_LAUNCH.iter_unpack(payload[after:behind])
        ]
        made = [*MADE.iter_unpack(payload[behind:])]
        return Gate(admitted, unchanged, busy, in_flight, captures, held, waiting, launches, made)

    def admit(
        self,
        thread: int,
        calls: int = 1,
        walk: int = 0,
        patience_us: int = 5000,
        allowed: Mapping[int, int] = MappingProxyType({}),
    ) -> int:
        asked = ADMIT.pack(self.transaction, thread, calls, patience_us, walk)
        asked += b"".join(ALLOWED.pack(signature, launched, 0) for signature, launched in allowed.items())
        _, done, _ = COUNT.unpack(self.ask("admit", asked)[0])
        return done

    def count(self, kind: str) -> tuple[int, int]:
        transaction, handles, size = COUNT.unpack(self.ask(kind)[0])
        assert transaction == self.transaction
        return handles, size

    def give_back(self, ids: Sequence[int], batch: int = 253) -> None:
        for first in range(0, len(ids), batch):
            part = ids[first : first + batch]
            self.give(part, [self.custody.held[i] for i in part])

    def give(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        body = ID_LIST.pack(self.transaction, len(ids), 0) + struct.pack(f"<{len(ids)}Q", *ids)
        self.ask("import", body, fds)

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
        """IMPORT to RESUME."""
        self.give_back(sorted(self.custody.held))
        self.count("map")
        self.ask("resume")
        self.custody.keep_all()

    def undo_prepare(self) -> None:
        self.ask("resume")
        self.custody.release_new()

    def cycle(self) -> tuple[int, int]:
        taken = self.take()
        self.bring_back()
        return taken

    def close(self) -> None:
        if self.link.fileno() < 0:
            return
        super().close()
        self.custody.drop()
