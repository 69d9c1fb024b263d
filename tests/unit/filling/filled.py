"""The target of a migration or a restore, with a device in host memory. Reader, ring and books are the real ones."""

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from host_device import LONG, Device, read
from imaging import described, mapped
from msgspec.structs import replace

from gcr.api.migrations import Fill, Filled, World
from gcr.config import Config
from gcr.daemon.coming import AllComing
from gcr.daemon.commands import filling
from gcr.daemon.commands.asked import Asked
from gcr.drain import DeviceMemory, DeviceRange, HandleSpec, Span
from gcr.engine.turns import Turns
from gcr.errors import PeerGone
from gcr.hashing import CHUNK_BYTES
from gcr.image.chunks.lines import Slots
from gcr.image.files.manifest import ImagedProcess, Manifest
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.ondevice import OnDevice
from gcr.memory.arena import Arena
from gcr.memory.escrow import duplicate
from gcr.memory.layout import SealedHandle, SealedSegment, SealedTable
from gcr.protocol.operations.worker import CopyName
from gcr.worker import coming
from gcr.worker.holdings import Holdings
from gcr.worker.snapshot import SPARE_SHARE
from gcr.worker.streaming import empty, make_ring

ID = "0" * 32
HOLD, TRANSACTION = "7.100", 9  # of the process, once it is here
SLOT = 2 * CHUNK_BYTES


class Empty(Device):
    """A device with room for `free` bytes, on which memory is made anew. `written`: bytes that were copied to it."""

    free = 1 << 30
    written = 0

    def memory(self) -> DeviceMemory:
        total = SPARE_SHARE << 30
        return DeviceMemory(total - total // SPARE_SHARE - self.free, total, {})

    def create(self, handles: Sequence[HandleSpec]) -> DeviceRange:
        size = sum(spec.size for spec in handles)
        made = ctypes.create_string_buffer(b"\xee" * size, size)
        self.room[ctypes.addressof(made)] = made
        self.free -= size
        starts = [sum(spec.size for spec in handles[:number]) for number in range(len(handles))]
        return DeviceRange(
            ctypes.addressof(made), size, {spec.id: at for spec, at in zip(handles, starts, strict=True)}
        )

    def release(self, where: DeviceRange) -> None:
        self.free += len(self.room.pop(where.address))

    def write(self, spans: Sequence[Span]) -> Any:
        for span in spans:
            ctypes.memmove(span.device, span.host, span.size)
            self.written += span.size
        return SimpleNamespace(wait=lambda _timeout: 0.0, done=lambda: 0)


class Failing:
    """Fails the call of a number, counted over all peers; none for 0."""

    def __init__(self) -> None:
        self.left = 0

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise PeerGone("dead")


class Worker:
    """A worker peer without a process of its own: the operations are those of gcr.worker."""

    device, loses = "GPU-2", False
    copies = handles = rings = coming = property(lambda self: self)

    def __init__(self, device: Empty, failing: Failing) -> None:
        arena = Arena(lambda _at, _n: None, lambda _at: None, segment_bytes=SLOT, limit_bytes=1 << 30, threads=2)
        attachment: Any = SimpleNamespace(drain=device, hashes_itself=lambda: False)
        self.holdings, self.failing, self.arena = Holdings(attachment, arena, self.device), failing, arena

    def attach(self, _limit: float) -> bool:
        return True

    def surrender(self, hold: str) -> None:
        if known := self.holdings.known(hold):
            known.surrender()
        self.holdings.remove(hold)

    def reclaim(self, copy: CopyName, owner: str, _left: str, fds: Sequence[int]) -> None:
        self.failing.step()
        self.holdings.copy(copy, owner).reclaim(SealedTable.from_fd(fds[0]), [])

    def fit(self, copy: CopyName) -> set[int]:
        self.failing.step()
        return {*coming.fit(self.holdings.copy(copy))}

    def held(self, hold: str) -> set[int]:
        self.failing.step()
        if self.loses:
            self.surrender(hold)
        return {*self.holdings.of(hold).memory.ids()}

    def inherit(self, copy: CopyName, hold: str) -> int:
        return coming.inherit(self.holdings, copy.hold, copy.transaction, hold)

    def create(self, copy: CopyName, ballast: int) -> int:
        return self.holdings.of(copy.hold).create(copy.transaction, ballast)

    def make(self, copy: CopyName, owner: str, *how: Any, beyond: bool) -> tuple[int, list[int]]:
        self.failing.step()
        ring = make_ring(self.holdings.copy(copy, owner), *how, beyond)
        return ring.count, duplicate(ring.segments.fds)

    def empty(self, copy: CopyName, slot: int, windows: Sequence[tuple[int, int]], deadline: float) -> None:
        self.failing.step()
        empty(self.holdings.copy(copy), slot, windows, deadline)

    def drop(self, copy: CopyName) -> None:
        self.failing.step()
        self.holdings.copy(copy).drop_ring()


class Helper:
    """An image helper without a process of its own."""

    def __init__(self, store: Store, failing: Failing) -> None:
        self.store, self.failing, self.there, self.slots = store, failing, OnDevice(), dict[str, Slots]()
        self.reader: ImageReader | None = None
        self.channel: Any = SimpleNamespace(closed=Event(), close=self._close)

    def _close(self) -> None:
        self.channel.closed.set()
        if self.reader:
            self.reader.__exit__()
        self.reader = None

    def manifest(self, _place: object, name: str, *_how: object) -> Manifest:
        return self.store.images.manifest(name)

    def open(self, _place: object, manifest: Manifest, *_how: object) -> None:
        self.failing.step()
        if self.reader:
            self.reader.__exit__()
        self.reader = ImageReader(self.store, manifest.name, threads=2).__enter__()

    def lacking(self, pid: int, device: str, kept: set[int], most: int, *_how: object) -> Sequence[tuple[int, int]]:
        self.failing.step()
        assert self.reader
        return self.there.lacking(self.reader, (pid, device), kept, most)

    def brought(self, pid: int, device: str) -> None:
        self.failing.step()
        self.there.brought(pid, device)

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        self.slots[device] = Slots(fds, slot_bytes)

    def read(self, pid: int, device: str, slot: int, windows: Sequence[tuple[int, int]], *_how: object) -> None:
        self.failing.step()
        assert self.reader
        memory = self.slots[device].slot(slot, sum(size for _, size in windows))
        self.reader.read_windows(pid, device, windows, memory)


class Target:
    """The node that a job comes to. `job`: its memory at the source."""

    def __init__(self, folder: Path) -> None:
        self.store, self.failing, self.device, self.job = Store(folder), Failing(), Empty(), Device()
        self.present = ["GPU-1"]
        self.worker, self.ids, self.rounds = Worker(self.device, self.failing), iter(range(1, 1000)), 0
        self.node: Any = SimpleNamespace(
            config=Config(slot_bytes=SLOT),
            residents=SimpleNamespace(arriving=AllComing()),
            turns=Turns(),
            next_transaction=lambda: 1,
            fleet=SimpleNamespace(image_helper=lambda: Helper(self.store, self.failing)),
            worker=lambda _world, device: self.worker if device == "GPU-2" else pytest.fail("another device"),
            occupying=lambda _device: nullcontext(),
        )

    def image(self) -> str:
        """Writes the image of a round, as the source has it now."""
        self.rounds += 1
        name, at, handles = f"round-{self.rounds}", 0, list[SealedHandle]()
        memory = {id: self.job.holds(id) for id in sorted(self.job.memory_of)}
        for id, data in memory.items():
            handles.append(SealedHandle(HandleSpec(id, len(data), 0, 0), "GPU-1", at))
            at += len(data)
        table = SealedTable("llm", 7, 8, 9, {0: "GPU-1"}, tuple(handles), (), (SealedSegment("GPU-1", at),))
        with ImageWriter(self.store, name, threads=2) as writer:
            writer.add((mapped(data), ()) for data in memory.values())
            plain = described(name, [len(data) for data in memory.values()])
            writer.commit(lambda found: replace(plain(found), processes=(ImagedProcess(table, 3, 4),)))
        return name

    def fill(self, image: str) -> Filled:
        devices = {"GPU-1": "GPU-2"}
        step = Fill(job="llm", id=ID, image=image, world=World("nvidia"), devices=devices)
        asked = Asked(lambda _event: None, Event())
        return filling.fill(self.node, step, cast("Any", None), LONG, asked)

    def restored(self, image: str) -> Mapping[int, bytes] | None:
        """Returns what a restore from the image finds on the device; None where it has to read the image."""
        manifest = self.store.images.manifest(image)
        known, copy = self.node.residents.arriving.known("llm"), CopyName(HOLD, TRANSACTION)
        opened = filling.OpenedImage(manifest, [], "", cast("Any", None), 1.0, coming=known)
        hold = opened.ahead(7, "GPU-1", cast("Any", self.worker))
        if hold is None:
            return None
        self.worker.inherit(copy, hold)
        fd = replace(manifest.processes[0].table, segments=()).to_memfd()
        read(fd, lambda fd: self.worker.reclaim(copy, "llm/7", "GPU-1", [fd]))
        there = self.worker.create(copy, 0)
        assert there == sum(handle.spec.size for handle in manifest.processes[0].table.handles)
        memory = self.worker.holdings.of(HOLD).memory
        return {
            id: ctypes.string_at(where.address + at, memory.specs[id].size)
            for where in memory.ranges
            for id, at in where.offsets.items()
        }

    def nothing_is_left(self) -> bool:
        return not self.device.room and not self.arena_bytes()

    def arena_bytes(self) -> int:
        return sum(copy.segments.size for copy in self.worker.holdings.copies() if copy.segments)

    def close(self) -> None:
        self.node.residents.arriving.drop("llm", ID)
        self.worker.arena.close()
