"""`python -m gcr.testing.peer_main FD`: a nursery of processes that each serve a Peer until its socket closes."""

import ctypes
import hashlib
import importlib
import mmap
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gcr.backend import Backend, Capability, Device
from gcr.control import ControlMeans, ControlPhase, ControlState, MovesProcesses, ProcessView
from gcr.drain import Ballast, DataDrain, DeviceMemory, DeviceRange, Handed, HandleSpec, Move, Span
from gcr.errors import GcrError
from gcr.hashing import ChunkHashes, HashKey
from gcr.protocol.jsonbody import error_to_json
from gcr.testing.nursery import next_order
from gcr.testing.pattern import pattern
from gcr.testing.peer import MAX_DESCRIPTORS, MAX_PACKET

COPY_SECONDS = 20.0
LOOKS, LOOK_SECONDS = 11, 0.006
HASH_BEGINS_SECONDS = 0.005


class Service:
    """The requests that a test makes of a child, which has one drain and one control, as a worker and a helper do."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._drain: DataDrain | None = None
        self._control: ControlState | None = None
        self._ballasts: dict[int, Ballast] = {}
        self.received: list[int] = []
        self.sending: list[int] = []

    # ---- the process itself -----------------------------------------------------------------------------------

    def descriptors(self) -> int:
        """Returns the number of open descriptors, the median of some looks: a driver's threads open files briefly."""
        return sorted(self._descriptors_now() for _ in range(LOOKS))[LOOKS // 2]

    @staticmethod
    def _descriptors_now() -> int:
        time.sleep(LOOK_SECONDS)
        return len(list(Path("/proc/self/fd").iterdir())) - 1  # less the one that lists

    def mapped(self, fragments: Sequence[str]) -> list[str]:
        """Returns the file names among these that this process maps."""
        maps = Path("/proc/self/maps").read_text()
        return [fragment for fragment in fragments if fragment in maps]

    def mapped_bytes(self) -> int:
        """Address space this process has reserved, in bytes."""
        status = Path("/proc/self/statm").read_text()
        return int(status.split()[0]) * mmap.PAGESIZE

    def name(self) -> str:
        return self._backend.name

    def probe(self) -> Sequence[Capability]:
        return list(self._backend.probe())

    def devices(self) -> Sequence[Device]:
        return list(self._backend.devices())

    # ---- drain ------------------------------------------------------------------------------------------------

    @property
    def drain(self) -> DataDrain:
        assert self._drain is not None, "open a device first"
        return self._drain

    def open(self, device: str) -> None:
        self._drain = self._backend.drain(device)

    def close(self) -> None:
        self.drain.close()

    def create(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        return self.drain.create(specs)

    def adopt(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        """Takes the descriptors that came with this request, in the order of `specs`."""
        taken, self.received = self.received, []
        return self.drain.adopt([Handed(spec, fd) for spec, fd in zip(specs, taken, strict=True)])

    def export(self, where: DeviceRange, ids: Sequence[int]) -> list[HandleSpec]:
        handed = self.drain.export(where, ids)
        self.sending = [each.fd for each in handed]
        assert not any(os.get_inheritable(fd) for fd in self.sending), "a child of this process would inherit them"
        return [each.spec for each in handed]

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        self.drain.forget(where, ids)

    def release(self, where: DeviceRange) -> None:
        self.drain.release(where)

    def memory(self) -> DeviceMemory:
        return self.drain.memory()

    def fill(self, where: DeviceRange, sizes: Mapping[int, int], seed: int) -> None:
        """Write the pattern of each handle into the device, through pinned host memory."""
        with self._pinned(sum(sizes.values())) as (address, memory):
            spans = list(_spans(where, sizes, address))
            for span, (id, size) in zip(spans, sizes.items(), strict=True):
                memory[span.host - address : span.host - address + size] = pattern(seed, id, size)
            transfer = self.drain.write(spans)
            assert transfer.wait(COPY_SECONDS) >= 0.0
            assert transfer.done() == sum(sizes.values())

    def digests(self, where: DeviceRange, sizes: Mapping[int, int]) -> dict[int, str]:
        """SHA-256 of each handle's bytes as they are on the device now."""
        with self._pinned(sum(sizes.values())) as (address, memory):
            spans = list(_spans(where, sizes, address))
            transfer = self.drain.read(spans)
            assert transfer.wait(COPY_SECONDS) >= 0.0
            assert transfer.done() == sum(sizes.values())
            return {
                id: hashlib.sha256(memory[span.host - address : span.host - address + span.size]).hexdigest()
                for id, span in zip(sizes, spans, strict=True)
            }

    def progress(self, where: DeviceRange, sizes: Mapping[int, int], deadline: float) -> tuple[bool, list[int]]:
        """Read with a deadline; whether it passed, and the bytes done as seen on the way, the end included."""
        with self._pinned(sum(sizes.values())) as (address, _memory):
            transfer = self.drain.read(list(_spans(where, sizes, address)))
            seen, passed = [transfer.done()], False
            try:
                transfer.wait(deadline)
            except GcrError as error:
                passed = error.code == "deadline_passed"
            give_up = time.monotonic() + COPY_SECONDS
            while seen[-1] < sum(sizes.values()) and time.monotonic() < give_up:
                seen.append(transfer.done())
                time.sleep(0.002)
            transfer.wait(COPY_SECONDS)
            return passed, seen

    def hash(
        self, ranges: Sequence[DeviceRange], key: HashKey, chunk_bytes: int, timeout: float = COPY_SECONDS
    ) -> ChunkHashes:
        return self.drain.hash(ranges, key, chunk_bytes, timeout)

    def poke(self, where: DeviceRange, id: int, at: int, value: bytes) -> None:
        """Write some bytes of a handle."""
        with self._pinned(len(value)) as (address, memory):
            memory[:] = value
            self.drain.write([Span(where.address + where.offsets[id] + at, address, len(value))]).wait(COPY_SECONDS)

    def move(self, target: DeviceRange, source: DeviceRange, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy within the device: offsets in both ranges, and bytes."""
        placed = [Move(target.address + to, source.address + at, size) for to, at, size in moves]
        transfer = self.drain.move(placed)
        assert transfer.wait(COPY_SECONDS) >= 0.0
        assert transfer.done() == sum(size for _to, _at, size in moves)

    def release_during_hash(self, where: DeviceRange, key: HashKey, chunk_bytes: int) -> ChunkHashes:
        """Release a range while another thread hashes it; what that thread found."""
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(self.hash, [where], key, chunk_bytes)
            while not waiting.running() and not waiting.done():
                time.sleep(0)
            time.sleep(HASH_BEGINS_SECONDS)
            self.drain.release(where)
            return waiting.result(COPY_SECONDS)

    def release_during_read(self, where: DeviceRange, sizes: Mapping[int, int]) -> int:
        """Release a range while it is being read; the bytes that had moved when release came back."""
        with self._pinned(sum(sizes.values())) as (address, _memory):
            transfer = self.drain.read(list(_spans(where, sizes, address)))
            self.drain.release(where)
            moved = transfer.done()
            transfer.wait(COPY_SECONDS)
            return moved

    @contextmanager
    def _pinned(self, size: int) -> Iterator[tuple[int, mmap.mmap]]:
        memory = mmap.mmap(-1, size)
        view = (ctypes.c_char * size).from_buffer(memory)
        address = ctypes.addressof(view)
        self.drain.pin(address, size)
        try:
            yield address, memory
        finally:
            self.drain.unpin(address)
            del view
            memory.close()

    def unpin(self, address: int) -> None:
        self.drain.unpin(address)

    def ballast(self, size: int) -> int:
        ballast = self.drain.ballast(size)
        self._ballasts[id(ballast)] = ballast
        return id(ballast)

    def drop(self, ballast: int) -> None:
        self._ballasts[ballast].release()

    # ---- control ----------------------------------------------------------------------------------------------

    @property
    def control(self) -> ControlState:
        if self._control is None:
            self._control = self._backend.control()
        return self._control

    def means(self) -> ControlMeans:
        return self.control.means

    def phase(self, pid: int) -> ControlPhase:
        return self.control.phase(pid)

    def inspect(self, pid: int) -> ProcessView:
        return self.control.inspect(pid)

    def lock(self, pid: int, deadline: float) -> None:
        self.control.lock(pid, deadline)

    def checkpoint(self, pid: int, deadline: float) -> None:
        self.control.checkpoint(pid, deadline)

    def moves(self) -> bool:
        return isinstance(self.control, MovesProcesses)

    def check_move(self, devices: Mapping[str, str]) -> None:
        assert isinstance(self.control, MovesProcesses)
        self.control.check_move(devices)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        self.control.restore(pid, devices, deadline)

    def unlock(self, pid: int, deadline: float) -> None:
        self.control.unlock(pid, deadline)

    def longest_silence(self, method: str, pid: int) -> tuple[float, float]:
        """Run a control call; seconds it took, and the longest time another thread of this process was kept from
        running meanwhile."""
        beat = _Heartbeat()
        started = time.monotonic()
        getattr(self, method)(pid, *(({},) if method == "restore" else ()), COPY_SECONDS)
        return time.monotonic() - started, beat.stop()


class _Heartbeat:
    """A thread that ticks every millisecond and remembers its longest pause."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.001):
            now = time.monotonic()
            self._longest, last = max(self._longest, now - last), now
        self._longest = max(self._longest, time.monotonic() - last)

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._longest


def _spans(where: DeviceRange, sizes: Mapping[int, int], host: int) -> Iterator[Span]:
    """Handle after handle, packed on the host in the order of `sizes`."""
    for id, size in sizes.items():
        yield Span(where.address + where.offsets[id], host, size)
        host += size


def _answer(service: Service, packet: bytes) -> tuple[str, object]:
    method, arguments = pickle.loads(packet)
    try:
        return "value", getattr(service, method)(*arguments)
    except GcrError as error:
        return "gcr", error_to_json(error)
    except Exception:
        return "foreign", traceback.format_exc()


def serve(service: Service, connection: socket.socket) -> None:
    while True:
        packet, service.received, _flags, _from = socket.recv_fds(connection, MAX_PACKET, MAX_DESCRIPTORS)
        if not packet:
            return
        reply = _answer(service, packet)
        socket.send_fds(connection, [pickle.dumps(reply)], service.sending)
        for fd in service.sending:
            os.close(fd)
        service.sending = []


def main(fd: int) -> None:
    with socket.socket(fileno=fd) as line:
        order = next_order(line)  # in a new process
    module, name = order.backend.split(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    with socket.socket(fileno=order.line) as connection:
        serve(Service(backend), connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
