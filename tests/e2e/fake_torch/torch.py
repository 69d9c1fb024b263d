"""Stands for PyTorch in a rehearsal of benchmarks/sharing_program.py: tensors of one value, ranks that do not talk.

What an all_reduce makes is known without the others, since each rank of that program has its number and one.
"""

import time
from pathlib import Path
from typing import Any

from cuda_driver import driver

int64, float32 = "int64", "float32"
SECONDS = 1e-5


class device:
    def __init__(self, _kind: str, index: int) -> None:
        self.index = index


class Comparison(list[bool]):
    def all(self) -> bool:
        return all(self)


class Tensor:
    def __init__(self, value: int) -> None:
        self.value = value

    def copy_(self, other: "Tensor") -> None:
        self.value = other.value

    def add_(self, other: "Tensor") -> None:
        self.value += other.value

    def __eq__(self, value: object) -> Any:
        return Comparison([self.value == value])


def zeros(_size: int, **_kind: Any) -> Tensor:
    return Tensor(0)


def full(_shape: tuple[int], value: int, **_kind: Any) -> Tensor:
    return Tensor(value)


def zeros_like(_tensor: Tensor) -> Tensor:
    return Tensor(0)


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: "Event") -> float:
        return (later.at - self.at) * 1000


class cuda:
    Event = Event

    @staticmethod
    def set_device(where: device) -> None:
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(where.index)))
        driver.cuMemAlloc_v2(4 << 20)

    @staticmethod
    def synchronize() -> None: ...


class Communicators:
    """Ranks wait for each other where they make one, in a file as PyTorch's do."""

    def __init__(self) -> None:
        self.rank, self.ranks = -1, 0

    def init_process_group(self, backend: str, init_method: str, rank: int, world_size: int, device_id: device) -> None:
        assert not self.ranks and (backend, device_id.index) == ("nccl", rank)
        self.rank, self.ranks = rank, world_size
        meeting = init_method.removeprefix("file://")
        Path(f"{meeting}.{rank}").touch(exist_ok=False)
        while not all(Path(f"{meeting}.{each}").exists() for each in range(world_size)):
            time.sleep(0.001)

    def destroy_process_group(self, group: object = None) -> None:
        assert self.ranks
        self.ranks = self.ranks if group else 0

    def new_group(self) -> object:
        return "another"

    def all_reduce(self, tensor: Tensor, group: object = None) -> None:
        assert self.ranks
        time.sleep(SECONDS)
        if tensor.value == self.rank + 1:
            tensor.value = self.ranks * (self.ranks + 1) // 2


distributed = Communicators()
