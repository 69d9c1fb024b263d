"""The method of PCcheck (ASPLOS'25), written anew: pinned chunks, several saves in flight, a file of slots.

A save copies the state to page-locked chunks by a stream of its own, beside the forward and backward passes that
follow; the optimizer's next step waits for the last chunk. Threads write each chunk to the save's slot meanwhile. When
all of a slot is on the disk, the head of the file names it. There are as many slots as saves in flight, and one more.

Unlike the code that was published it saves the optimizer's state, makes the data durable before the head names it, and
loses no rest of a chunk.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

CHUNK_BYTES = 64 << 20
HEAD_BYTES = 4096
WRITERS = 3  # threads a save; the paper's tuner takes two or three
MEMORY = 2.0  # of the state, in page-locked chunks

Part = tuple[int, Sequence[torch.Tensor]]  # its offset in a slot, and its bytes on the device: a chunk of them at most


class Slots:
    """The file, and its head: the number of the slot that is whole, and the step in it."""

    def __init__(self, path: Path, slots: int, size: int) -> None:
        self.fd, self.size = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), size
        os.ftruncate(self.fd, HEAD_BYTES + slots * size)
        self.free = SimpleQueue[int]()
        for slot in range(slots):
            self.free.put(slot)
        self.whole: tuple[int, int] | None = None  # step, slot

    def write(self, slot: int, at: int, data: memoryview) -> None:
        place = HEAD_BYTES + slot * self.size + at
        while data:
            done = os.pwrite(self.fd, data, place)
            data, place = data[done:], place + done

    def commit(self, step: int, slot: int) -> None:
        """Makes the slot durable, and then the head, unless a later step is there already."""
        os.fdatasync(self.fd)
        if self.whole and self.whole[0] > step:
            self.free.put(slot)
            return
        os.pwrite(self.fd, slot.to_bytes(8, "little") + step.to_bytes(8, "little"), 0)
        os.fdatasync(self.fd)
        former, self.whole = self.whole, (step, slot)
        if former:
            self.free.put(former[1])

    def read(self, at: int, data: memoryview) -> None:
        assert self.whole
        place = HEAD_BYTES + self.whole[1] * self.size + at
        while data:
            done = os.preadv(self.fd, [data], place)
            data, place = data[done:], place + done


class ByPccheck:
    """tensors: of the state, always the same ones. Saves that find no slot are skipped."""

    def __init__(self, store: Path, tensors: Sequence[torch.Tensor], in_flight: int) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._parts = list(parts_of(tensors))
        size = sum(each.numel() for _, pieces in self._parts for each in pieces)
        self._slots = Slots(store / "slots", in_flight + 1, size)
        self._device = self._parts[0][1][0].device
        self._pinned = self._device.type == "cuda"
        self._stream = torch.cuda.Stream() if self._pinned else None
        self._chunks = SimpleQueue[torch.Tensor]()
        for _ in range(max(2, int(MEMORY * size) // CHUNK_BYTES)):
            self._chunks.put(torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._pinned))
        self._saves = ThreadPoolExecutor(in_flight, "pccheck-save")
        self._writers = ThreadPoolExecutor(WRITERS * in_flight, "pccheck-write")
        self._flying = in_flight
        self._under_way: list[Future[None]] = []
        self._copied = Event()
        self._copied.set()
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        self.way: dict[str, Any] = {}

    def save(self, step: int, _state: object) -> Callable[[], bool]:
        self._under_way = [each for each in self._under_way if not each.done()]
        self.way = {"way": "pccheck", "skipped": True}
        if len(self._under_way) >= self._flying or not self._copied.is_set():
            return lambda: True
        try:
            slot = self._slots.free.get_nowait()
        except Empty:
            return lambda: True
        self.way = {"way": "pccheck", "skipped": False}
        self._copied.clear()
        ready = torch.cuda.Event() if self._pinned else None
        if ready:
            ready.record()
        saving = self._saves.submit(self._save, step, slot, ready)
        self._under_way.append(saving)
        return lambda: saving.done() and saving.result() is None

    def _before_step(self, *_: object) -> None:
        self._copied.wait()

    def _save(self, step: int, slot: int, ready: Any) -> None:
        try:
            taken = ((at, *self._taken(pieces, ready)) for at, pieces in self._parts)
            writes = [self._writers.submit(self._write, slot, *each) for each in taken]
        finally:
            self._copied.set()
        for each in writes:
            each.result()
        self._slots.commit(step, slot)

    def _taken(self, pieces: Sequence[torch.Tensor], ready: Any) -> tuple[torch.Tensor, int]:
        """Returns a chunk with the bytes of a part, and their number. Chunks are copied one after the other."""
        chunk = self._chunks.get()
        if self._stream is None:
            return chunk, put(pieces, chunk)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            size = put(pieces, chunk)
            copied = torch.cuda.Event()
            copied.record()
        copied.synchronize()
        return chunk, size

    def _write(self, slot: int, at: int, chunk: torch.Tensor, size: int) -> None:
        self._slots.write(slot, at, memoryview(chunk.numpy())[:size])
        self._chunks.put(chunk)

    def load(self, _step: int, _state: object) -> None:
        chunk = self._chunks.get()
        for at, pieces in self._parts:
            size, done = sum(each.numel() for each in pieces), 0
            self._slots.read(at, memoryview(chunk.numpy())[:size])
            for each in pieces:
                each.copy_(chunk[done : done + each.numel()])
                done += each.numel()
        self._chunks.put(chunk)

    def close(self) -> None:
        self._saves.shutdown()
        self._writers.shutdown()
        self._hook.remove()
        os.close(self._slots.fd)


def put(pieces: Sequence[torch.Tensor], chunk: torch.Tensor) -> int:
    """Copies pieces to a chunk, back to back. Returns their bytes."""
    at = 0
    for each in pieces:
        chunk[at : at + each.numel()].copy_(each, non_blocking=True)
        at += each.numel()
    return at


def parts_of(tensors: Sequence[torch.Tensor]) -> Iterator[Part]:
    """Yields the bytes of the tensors, back to back, in parts of a chunk."""
    at, size, pieces = 0, 0, list[torch.Tensor]()
    for tensor in tensors:
        left = tensor.detach().view(-1).view(torch.uint8)
        while left.numel():
            pieces.append(left[: CHUNK_BYTES - size])
            left, size = left[CHUNK_BYTES - size :], size + pieces[-1].numel()
            if size == CHUNK_BYTES:
                yield at, pieces
                at, size, pieces = at + size, 0, []
    if pieces:
        yield at, pieces
