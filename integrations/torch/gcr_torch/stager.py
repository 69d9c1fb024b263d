"""An AsyncStager of torch.distributed.checkpoint: copies a state to host memory, from which it is saved meanwhile.

    dcp.async_save(state, storage_writer=Writer("/data/run", step=1000), async_stager=stager)

Host tensors are copied before `stage` returns. Those of a device are copied by the stream that is current then, so work
that the trainer enqueues there afterwards comes behind the copy. The Future is done when all copies are.

The copies lie in buffers that are used again: a buffer is free once no staged tensor in it is referred to any more. On
a machine with CUDA they are pinned.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any
from weakref import finalize

import torch
from msgspec import Struct, field
from torch.distributed.checkpoint.staging import AsyncStager
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gcr.errors import UsageError
from gcr_torch import tensors

State = dict[str, Any]


class NotReady(Exception):
    """A tensor of a device is not among those that another process copies."""


class Ready(Struct):
    """Copies of device tensors that another process makes.

    tensors: the copies, by id of the tensor · kept: the tensors themselves, so that no other has such an id
    waits: return when the copies have their bytes, and raise what went wrong
    """

    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    waits: list[Callable[[], object]] = field(default_factory=list)


class Stager(AsyncStager):
    """Stages states in host memory, as much as the state has and for as many states as are saved at a time.

    Thread-safe. `pin`: page-lock the buffers; None: where there is CUDA.
    """

    _synchronize_after_execute = False  # the Future says it

    def __init__(self, *, pin: bool | None = None) -> None:
        self._buffers = _Buffers(torch.cuda.is_available() if pin is None else pin)
        self._waiting: ThreadPoolExecutor | None = None

    def stage(self, state_dict: State, ready: Ready | None = None) -> Future[State]:
        """Returns the future copy. Tensors in host memory may change when this returns, all others when it is done.

        What is no tensor is copied by `copy.deepcopy`. Raises NotSaveable, UsageError for a state without a copy.
        ready: copies of all device tensors; NotReady is raised for another one.
        """
        staging = _Staging(self._buffers, ready)
        found = staging.copied(state_dict, "")
        if waits := [*staging.waits(), *(ready.waits if ready else ())]:
            if self._waiting is None:
                self._waiting = ThreadPoolExecutor(1, "gcr-stage")
            return self._waiting.submit(_after, waits, found)
        done = Future[State]()
        done.set_result(found)
        return done

    def synchronize_staging(self) -> None:
        """Does nothing: the Future tells. Deprecated in PyTorch."""
        return

    def close(self) -> None:
        """Waits for copies under way, and drops the buffers that are free."""
        if self._waiting:
            self._waiting.shutdown()
            self._waiting = None
        self._buffers.drop()

    @property
    def buffer_bytes(self) -> int:
        """Returns the bytes of all buffers, free or not."""
        return self._buffers.total


def _after(waits: Sequence[Callable[[], object]], found: State) -> State:
    for wait in waits:
        wait()
    return found


class _Staging:
    """One copy of a state."""

    def __init__(self, buffers: "_Buffers", ready: Ready | None) -> None:
        self._buffers, self._is_ready = buffers, ready is not None
        # By id: a tensor that occurs twice is copied once.
        self._copies: dict[int, torch.Tensor] = dict(ready.tensors) if ready else {}
        self._devices: dict[torch.device, Any] = {}

    def waits(self) -> list[Callable[[], object]]:
        """Returns waits for an event behind the copies of each device, which is recorded now."""
        return [stream.record_event().synchronize for stream in self._devices.values()]

    def copied(self, found: Any, name: str) -> Any:
        """Returns a copy of a part of the state. Raises NotSaveable, UsageError."""
        if isinstance(found, torch.Tensor):
            return self._tensor(found, name)
        if isinstance(found, dict):
            return {key: self.copied(value, f"{name}.{key}" if name else str(key)) for key, value in found.items()}
        if type(found) in (list, tuple):
            return type(found)(self.copied(value, f"{name}.{number}") for number, value in enumerate(found))
        try:
            return copy.deepcopy(found)
        except Exception as error:
            raise UsageError(f"{name}: an object of {type(found).__name__} cannot be copied: {error}") from error

    def _tensor(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = self._parts(tensor, name)
        return self._copies[id(tensor)]

    def _parts(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Copies a tensor that wraps others, such as a DTensor, by copying those."""
        if tensor.is_nested or not is_traceable_wrapper_subclass(tensor):
            return self._plain(tensor, name)
        names, context = tensor.__tensor_flatten__()
        every = {each: getattr(tensor, each) for each in names}
        inner = {each: self._tensor(of, name) if isinstance(of, torch.Tensor) else of for each, of in every.items()}
        made: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
        return made

    def _plain(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        tensors.refuse_unsaveable(tensor, name)
        if self._is_ready and tensor.numel() and tensors.is_on_device(tensor):
            raise NotReady(f"{name}: another tensor than before lies on {tensor.device}")
        target = self._buffers.tensor(tensor.size(), tensor.dtype)
        with torch.no_grad():
            target.copy_(tensor.detach(), non_blocking=True)
        if tensor.device.type != "cpu":
            self._devices.setdefault(tensor.device, torch.accelerator.current_stream(tensor.device))
        return target


class _Buffers:
    """Buffers by size. Thread-safe: staged tensors are dropped on any thread."""

    def __init__(self, pin: bool) -> None:
        self.pin, self.total = pin, 0
        self._free: dict[int, list[torch.Tensor]] = {}
        self._lock = Lock()

    def tensor(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Returns a contiguous tensor in a buffer, which is free again when the tensor is dropped."""
        nbytes = size.numel() * dtype.itemsize
        if not nbytes:
            return torch.empty(size, dtype=dtype)
        buffer = self._taken(nbytes)
        found = buffer.view(dtype).view(size)
        finalize(found, self._give_back, buffer).atexit = False
        return found

    def _taken(self, nbytes: int) -> torch.Tensor:
        with self._lock:
            if free := self._free.get(nbytes):
                return free.pop()
            self.total += nbytes
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.pin)

    def _give_back(self, buffer: torch.Tensor) -> None:
        with self._lock:
            self._free.setdefault(buffer.numel(), []).append(buffer)

    def drop(self) -> None:
        with self._lock:
            self.total -= sum(nbytes * len(free) for nbytes, free in self._free.items())
            self._free.clear()
