"""An AsyncStager of torch.distributed.checkpoint: copies a state to host memory, from which it is saved meanwhile.

    dcp.async_save(state, storage_writer=Writer("/data/run", step=1000), async_stager=stager)

Host tensors are copied before `stage` returns. Those of a device are copied by the stream that is current then, so work
that the trainer enqueues there afterwards comes behind the copy. The Future is done when all copies are.

The copies of a state lie in one buffer (buffers.py). Where a device has tensors of it, and CUDA is in use, that is
page-locked.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from msgspec import Struct, field
from torch.distributed.checkpoint.staging import AsyncStager
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gcr.checkpoints.region import Region
from gcr.errors import UsageError
from gcr_torch import tensors
from gcr_torch.buffers import Buffers

State = dict[str, Any]


class NotReady(Exception):
    """A tensor of a device is not among those that another process copies."""


class Ready(Struct):
    """Copies of device tensors that another process makes.

    tensors: the copies, by id of the tensor · kept: the tensors themselves, so that no other has such an id
    waits: return when the copies have their bytes, and raise what went wrong · regions: memory where they lie
    """

    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    waits: list[Callable[[], object]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)


class Copied(Struct, frozen=True):
    """A state on its way to host memory, and the memory where its tensors lie, but those of a Ready."""

    state: Future[State]
    regions: Sequence[Region]


class Stager(AsyncStager):
    """Stages states in host memory, as much as the state has and for as many states as are saved at a time.

    Thread-safe. `pin`: page-lock memory where CUDA is in use.
    """

    _synchronize_after_execute = False  # the Future says it

    def __init__(self, *, pin: bool = True) -> None:
        self._buffers, self._pin = Buffers(), pin
        self._waiting: ThreadPoolExecutor | None = None

    def stage(self, state_dict: State) -> Future[State]:
        """Returns the future copy. Tensors in host memory may change when this returns, all others when it is done.

        What is no tensor is copied by `copy.deepcopy`. Raises NotSaveable, UsageError for a state without a copy.
        """
        return self.staged(state_dict).state

    def staged(self, state: State, ready: Ready | None = None, settle: Callable[[], object] = lambda: None) -> Copied:
        """The same. ready: copies of all device tensors; NotReady is raised for another one.

        settle: returns when these may change; called once what lies in host memory is copied

        Raises OSError as well, and what `settle` raises.
        """
        staging = _Staging(self._buffers, self._pin, state, ready)
        found = staging.copied(state, "")
        settle()
        if waits := [*staging.waits(), *(ready.waits if ready else ())]:
            if self._waiting is None:
                self._waiting = ThreadPoolExecutor(1, "gcr-stage")
            return Copied(self._waiting.submit(_after, waits, found), staging.buffer.regions)
        done = Future[State]()
        done.set_result(found)
        return Copied(done, staging.buffer.regions)

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

    def __init__(self, buffers: Buffers, pin: bool, state: State, ready: Ready | None) -> None:
        # By id: a tensor that occurs twice is copied once.
        self._copies: dict[int, torch.Tensor] = dict(ready.tensors) if ready else {}
        self._devices: dict[torch.device, Any] = {}
        rest = {id(tensor): tensor for tensor in tensors.plain(state) if id(tensor) not in self._copies}
        own = [tensor for tensor in rest.values() if not tensors.unsaveable(tensor)]
        on_device = any(tensor.numel() and tensors.is_on_device(tensor) for tensor in own)
        if ready and on_device:
            raise NotReady("the state has another tensor of a device than before")
        self.buffer = buffers.taken([tensor.numel() * tensor.element_size() for tensor in own], pin and on_device)

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
        target = self.buffer.tensor(tensor.size(), tensor.dtype)
        target.copy_(tensor.detach(), non_blocking=True)
        if tensor.device.type != "cpu":
            self._devices.setdefault(tensor.device, torch.accelerator.current_stream(tensor.device))
        return target
