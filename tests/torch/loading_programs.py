"""Loads that the tests run on a rank, to a device that copies later than it was asked to."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gcr.errors import GcrError
from gcr.torch import Checkpointer
from gcr_torch import pagelock, pipeline, reader

SLOTS, CHUNK = 4, 32 << 10


class Device:
    """Copies when the end of a copy is waited for, and not before: by then a slot that was used again is another's."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], Any]] = []  # copies that have not ended
        self.most = 0  # of them at a time
        self.slots = set[int]()

    def copy(self, target: torch.Tensor, found: torch.Tensor, slot: pipeline.Slot) -> "Ending":
        self.asked.append(lambda: target.copy_(found))
        self.most = max(self.most, len(self.asked))
        self.slots.add(id(slot))
        return Ending(self, self.asked[-1])


class Ending:
    def __init__(self, device: Device, copy: Callable[[], Any]) -> None:
        self.device, self.copy = device, copy

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.copy()
        self.device.asked.remove(self.copy)


class Reads(pipeline.Pipeline):
    """Knows how many pieces were under way at a time when one was copied."""

    most = 0

    def _put(self) -> None:
        Reads.most = max(Reads.most, len(self._read))
        super()._put()


def a_state() -> dict[str, Any]:
    random = torch.Generator().manual_seed(28)
    many = {f"small-{number}": torch.rand(number, 3, generator=random) for number in range(20)}
    turned = torch.rand(200, 301, generator=random).t()
    return {"flat": torch.rand(300_001, generator=random), "turned": turned, "step": 5, **many}


def locks_in_vain(rank: int, world: int, cuda: str) -> Any:
    """Returns whether memory was page-locked by a CUDA that refuses it, and the error that it still has then."""
    library = ctypes.CDLL(cuda, ctypes.RTLD_GLOBAL)
    torch.cuda.is_initialized = lambda: True
    pagelock._cudart = lambda: library
    slot = pipeline.Slot(CHUNK, again=True)
    return [slot.page_locked() for _ in range(2)], library.refusals(), library.cudaGetLastError()


def loads_late(rank: int, world: int, store: str, wrong: bool) -> Any:
    """Returns what is wrong after a load, the error, and figures of the pipeline. `wrong`: a byte of the store is."""
    state, device = a_state(), Device()
    pipeline.SLOTS, pipeline.copy = SLOTS, device.copy
    reader._PIECE_BYTES, reader.Pipeline = 2 * CHUNK, Reads
    blank = {name: torch.zeros_like(each) if isinstance(each, torch.Tensor) else 0 for name, each in state.items()}
    with Checkpointer(store, chunk_bytes=CHUNK) as keeper:
        keeper.save(1, state).durable.result(30)
        if wrong:
            pack = max(Path(store).rglob("*.pack"), key=lambda path: path.stat().st_size)
            with pack.open("r+b") as file:
                file.seek(pack.stat().st_size // 2)
                file.write(b"other bytes")
        try:
            keeper.load(1, blank)
        except GcrError as error:
            return error.code, len(device.asked)
    unequal = [
        name for name, each in state.items() if not torch.equal(torch.as_tensor(blank[name]), torch.as_tensor(each))
    ]
    return unequal, device.most, len(device.slots), Reads.most, len(device.asked)
