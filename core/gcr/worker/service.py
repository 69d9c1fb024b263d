"""The operations a worker offers its daemon, one method each; `WorkerPeer` is their other end."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import Any

from gcr.drain import Handed, spec_from_json
from gcr.errors import UsageError, WrongState
from gcr.hashing.baseline import Baseline
from gcr.memory.arena import Arena
from gcr.memory.layout import SealedTable
from gcr.protocol.batches import Incoming
from gcr.protocol.channel import Request
from gcr.protocol.seqpacket import close_all
from gcr.worker.attachment import Attachment
from gcr.worker.holding import Holding
from gcr.worker.link import measure_link
from gcr.worker.preparing import Preparing
from gcr.worker.snapshot import LAST_READ_S
from gcr.worker.streaming import drop_ring, empty, fill, lay_out_held, make_ring
from gcr.worker.taking import copy_live, copy_on, copy_out, give_up_snapshot, make_room

log = logging.getLogger("gcr.worker")

STEPS = frozenset({"reserve", "adopt", "reclaim", "create", "drain", "refill", "copy_on", "fill", "empty", "seal"})
"""Operations of a checkpoint or a restore, during which a program may stand still."""

QUIET_AFTER_S = 1.0  # since the end of the last such step


@dataclass(slots=True)
class WorkerService:
    attachment: Attachment
    arena: Arena
    device: str
    cold_s: float
    link: dict[str, float] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    _incoming: Incoming = field(default_factory=Incoming)
    _lock: Lock = field(default_factory=Lock)
    _room: Lock = field(default_factory=Lock)  # taken before a holding's: one call at a time takes free room
    preparing: Preparing = field(init=False)
    _steps: int = 0  # under way
    _last_step: float = -inf  # its end, on time.monotonic()

    def __post_init__(self) -> None:
        self.preparing = Preparing(self.arena, self._measure_link, self._busy)

    def serve(self, request: Request) -> None:
        body, fds = request.json(), request.take_fds()
        try:
            operation = getattr(self, f"op_{body['op']}", None)
            if operation is None:
                raise UsageError(f"a worker knows no {body['op']!r}")
            with self._counted(body["op"]):
                answer, given, ours = operation(body, fds, request) or ({}, (), False)
        finally:
            close_all(fds)
        try:
            request.reply_json(answer, given)
        finally:
            close_all(given if ours else ())

    def holding(self, body: dict[str, Any]) -> Holding:
        with self._lock:
            hold = body["hold"]
            known = self.holdings.get(hold)
            if known is None:
                known = self.holdings[hold] = Holding(self.attachment, self.arena, self.device, owner=hold)
            known.name = body.get("owner", known.name)
            return known

    def known(self, body: dict[str, Any]) -> Holding | None:
        """Returns the holding of a process, None where there is none; an operation that releases makes none."""
        with self._lock:
            return self.holdings.get(body["hold"])

    # Each: (body, descriptors, request) -> None, or (answer, descriptors to send, close them afterwards).

    def op_ready(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        return None

    def op_attach(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        return {"attached": self.attachment.attach()}, (), False

    def op_detach(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        with self._lock:
            for known in self.holdings.values():
                known.settle()
            holding = [name for name, known in self.holdings.items() if known.uses_the_device]
            if holding:
                raise WrongState(f"memory of {len(holding)} processes is held with this worker's context")
            self.attachment.detach()

    def op_adopt(self, body: dict[str, Any], fds: list[int], _request: Request) -> None:
        specs = [spec_from_json(item) for item in body["handles"]]
        handed = [Handed(spec, fd) for spec, fd in zip(specs, fds, strict=True)]
        drain, holding = self.attachment.drain, self.holding(body)
        fds.clear()  # the drain closes them
        holding.memory.adopt(handed, drain)

    def op_forget(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.forget(body["ids"])

    def op_reserve(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        self.holding(body).copy.reserve_known(body["bytes"])

    def op_lay_out(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        self.holding(body).copy.lay_out([spec_from_json(item) for item in body["handles"]])

    def op_compare_with(self, body: dict[str, Any], fds: list[int], _request: Request) -> None:
        (fd,) = fds
        self.holding(body).copy.parent = Baseline.from_fd(fd)

    def op_copy_live(self, body: dict[str, Any], _fds: list[int], request: Request) -> Any:
        teller = self._teller(request, "link_out_bytes_per_s")
        return copy_live(self.holding(body), body["deadline"], teller), (), False

    def op_drain(self, body: dict[str, Any], _fds: list[int], request: Request) -> Any:
        teller = self._teller(request, "link_out_bytes_per_s")
        return copy_out(self.holding(body), body["deadline"], teller, body["paranoid"]), (), False

    def op_make_room(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        with self._room:
            return {"bytes": make_room(self.holding(body), body["deadline"])}, (), False

    def op_copy_on(self, body: dict[str, Any], _fds: list[int], request: Request) -> Any:
        teller = self._teller(request, "link_out_bytes_per_s")
        return copy_on(self.holding(body), body["deadline"], teller), (), False

    def op_give_up_snapshots(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        end = time.monotonic() + LAST_READ_S
        with self._room:
            with self._lock:
                known = list(self.holdings.values())
            for holding in known:
                give_up_snapshot(holding, end)

    def op_seal(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        copy, about = self.holding(body).copy, body["about"]
        table = (copy.seal_for_image(about) if body["partial"] else copy.seal(about)).to_memfd()
        segments = self.arena.fds(copy.segments) if copy.segments else ()  # none of what passed through a ring
        try:
            return {}, [os.dup(table), *map(os.dup, segments)], True
        finally:
            os.close(table)

    def op_make_ring(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        ring = make_ring(self.holding(body), body["slot_bytes"], body["most"], body["least"], body["beyond"])
        return {"slots": ring.count}, [*map(os.dup, self.arena.fds(ring.segments))], True

    def op_lay_out_held(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        return {"bytes": lay_out_held(self.holding(body))}, (), False

    def op_fill(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        fill(self.holding(body), body["window"], body["deadline"])

    def op_empty(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        empty(self.holding(body), body["window"], body["deadline"])

    def op_drop_ring(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            drop_ring(known)

    def op_release(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.release()

    def op_held(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        known = self.known(body)
        return {"ids": known.memory.ids() if known else []}, (), False

    def op_forget_copy(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.forget_copy()

    def op_forfeit(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.forfeit()
        self._forget(body["hold"])
        self.preparing.end(body["hold"])

    def op_surrender(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.surrender()
        self._forget(body["hold"])
        self.preparing.forget(body["hold"])

    def _forget(self, hold: str) -> None:
        with self._lock:
            self.holdings.pop(hold, None)
        self._incoming.drop(hold)

    def op_knows(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        with self._lock:
            known = self.holdings.get(body["hold"])
        return {"known": known is not None and known.copy.layout is not None}, (), False

    def op_reclaim(self, body: dict[str, Any], fds: list[int], _request: Request) -> None:
        if body["offset"] == 0:  # an earlier attempt was cut off
            self._incoming.drop(body["hold"])
        if (arrived := self._incoming.add(body["hold"], fds, body["total"])) is not None:
            table, segments = _sort_out(arrived, body["left"])
            self.holding(body).copy.reclaim(table, segments)

    def op_create(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        self.holding(body).create(body["ballast"])

    def op_hold_ballast(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        self.holding(body).memory.hold_ballast(body["bytes"])

    def op_drop_ballast(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        if known := self.known(body):
            known.memory.drop_ballast()

    def op_refill(self, body: dict[str, Any], _fds: list[int], request: Request) -> Any:
        return self.holding(body).copy_in(body["deadline"], self._teller(request, "link_in_bytes_per_s")), (), False

    def _teller(self, request: Request, which: str) -> Callable[[dict[str, Any]], None]:
        """Returns a progress callback that adds the speed of the link, once it was measured."""
        return lambda report: request.progress({**report, "link_bytes_per_s": self.link.get(which)})

    def op_export(self, body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        return {}, self.holding(body).memory.export(body["ids"]), True

    def op_memory(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        """Returns bytes that the device counts for each process, and bytes of no process that no holding explains."""
        with self._lock:
            held = sum(known.device_bytes for known in self.holdings.values())
        found = self.attachment.drain.memory()
        by_pid = {str(pid): used for pid, used in found.by_pid.items()}
        return {"by_pid": by_pid, "unexplained": self.attachment.beyond_rest(found) - held}, (), False

    def op_arena(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        facts = {"bytes": self.arena.bytes, "pinned_bytes": self.arena.pinned_bytes, "cold_s": self.cold_s}
        return {**facts, **self.link}, (), False

    def op_prepare(self, body: dict[str, Any], _fds: list[int], _request: Request) -> None:
        """Grows the arena after the answer, until all processes that asked can leave at once."""
        self.preparing.wish(body["hold"], body["bytes"])

    def op_prepared(self, _body: dict[str, Any], _fds: list[int], _request: Request) -> Any:
        return {"bytes": self.preparing.ready()}, (), False

    @contextmanager
    def _counted(self, op: str) -> Iterator[None]:
        step = op in STEPS
        with self._lock:
            self._steps += step
        try:
            yield
        finally:
            with self._lock:
                self._steps -= step
                self._last_step = time.monotonic() if step else self._last_step

    def _busy(self) -> bool:
        """Tells whether a process is on its way to or from the device."""
        with self._lock:
            return self._steps > 0 or time.monotonic() < self._last_step + QUIET_AFTER_S

    def _measure_link(self) -> None:
        if not self.link and self.attachment.attached:
            self.link = measure_link(self.attachment.drain, self.arena)


def _sort_out(fds: list[int], device: str) -> tuple[SealedTable, list[int]]:
    """Picks the table and segments of one device from table, segments, table, segments …; closes the rest."""
    mine: tuple[SealedTable, list[int]] | None = None
    rest = list(fds)
    try:
        while rest:
            table = SealedTable.from_fd(rest[0])
            segments = rest[1 : 1 + len(table.segments)]
            if device in table.devices:
                mine = table, segments
                os.close(rest[0])
            else:
                close_all(rest[: 1 + len(segments)])
            rest = rest[1 + len(segments) :]
    except BaseException:
        close_all(rest)
        raise
    if mine is None:
        raise UsageError(f"nothing of device {device} was staged")
    return mine
