"""Windows: device memory that gcr's worker reads in place, from a save on until an optimizer writes it.

Forward and backward read parameters and the state of their optimizer, and only the optimizer's step writes them. So a
save can leave them where they are: a step that begins before they are read waits. PyTorch calls a hook before the step
of every optimizer, and tells by a tensor's version whether something else has written it.

    QUIET    at a save: the tensors of optimizers whose steps the hook has seen since the save before
    OPEN     they are read; a step waits for the end, WAIT_S at most
    OVER     they are read, and none was written meanwhile; else the save fails, and the training goes on

The hook sees no step of a CUDA graph that is replayed, nor one that was compiled, so such an optimizer is not quiet.
PyTorch does not count writes through `.data`, of fused kernels, and of some operations on a DTensor.
"""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any

import torch
from msgspec import Struct, field
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gcr.checkpoints.aside import Aside
from gcr.errors import DeadlinePassed
from gcr.imageerrors import NotSaveable
from gcr_torch.tensors import has_device_bytes, plain

WAIT_S = 30.0  # longest wait of an optimizer's step for the memory to be read

Mark = tuple[str, torch.Tensor, int, int]  # a tensor with its name, its version, and its address


class Quiet(Struct):
    """Tensors that nothing writes before an optimizer's next step. `why`: the reason, in words, where there are none.

    by_address: of each its bytes, and the tensors whose version tells of a write; devices share one range of addresses
    """

    why: str = ""
    by_address: dict[int, tuple[int, Sequence[torch.Tensor]]] = field(default_factory=dict)

    def add(self, owner: torch.Tensor) -> None:
        """Adds a tensor, or those that it wraps. A write may count for either."""
        for each in plain(owner):
            if has_device_bytes(each) and not each.is_inference():
                self.by_address[each.data_ptr()] = each.nbytes, (owner, each)

    def watched(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Returns the tensors to watch while this one is read in place; none if it is to be copied."""
        nbytes, owners = self.by_address.get(tensor.data_ptr(), (0, ()))
        if not owners or tensor.nbytes > nbytes:
            return ()
        return [*{id(each): each for each in (*owners, tensor)}.values()]


class Window:
    """The memory of one save that is read in place.

    over: done when it may be written; it has the error if the save failed · waited_s: seconds that steps have waited
    written: names of tensors that something else than a step has written
    """

    def __init__(self, marks: Sequence[Mark], reads: Sequence[Aside]) -> None:
        self.over = Future[None]()
        self.waited_s, self.written = 0.0, tuple[str, ...]()
        self._marks = marks
        self._reads, self._left, self._ended, self._lock = reads, len(reads), False, Lock()
        for read in reads:
            read.safe.add_done_callback(self._is_read)

    def wait(self) -> None:
        """Waits for the end, WAIT_S seconds at most; then the save fails."""
        began = time.monotonic()
        try:
            self.over.exception(WAIT_S)
        except TimeoutError:
            text = f"an optimizer's step waited {WAIT_S:g} s for its tensors to be read, and went on"
            self.end(DeadlinePassed(text))
        finally:
            self.waited_s += time.monotonic() - began

    def end(self, error: BaseException | None = None) -> None:
        """Ends the window, unless it has ended."""
        with self._lock:
            if self._ended:
                return
            reads, self._reads = self._reads, ()  # tensors and host memory may go, also where a Save is kept
            self._ended, self._marks = True, ()
        if error:
            self.over.set_exception(error)
            for read in reads:
                read.give_up()
        else:
            self.over.set_result(None)

    def _is_read(self, done: Future[None]) -> None:
        """Ends the window with the last read, or the first error; on a thread of gcr's."""
        with self._lock:
            self._left -= 1
        if (error := done.exception()) or not self._left:
            self.end(error or self._error_of_writes())

    def _error_of_writes(self) -> NotSaveable | None:
        """Compares before a step that waits may go on."""
        self.written = tuple({name: None for name, each, *was in self._marks if _marked(each)[1:] != (*was,)})
        if not self.written:
            return None
        more = f" and {len(self.written) - 1} more" if len(self.written) > 1 else ""
        text = f"{self.written[0]}{more}: something else than an optimizer's step wrote it before it was read"
        return NotSaveable(text, hint="wait for `safe` before the write, or way='copy'")


def marks_of(watched: Mapping[str, Sequence[torch.Tensor]]) -> list[Mark]:
    """Returns the versions and addresses that these tensors have now, by the names of what is read in place."""
    return [(name, *_marked(each)) for name, owners in watched.items() for each in owners]


def _marked(tensor: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    return tensor, tensor._version, next(iter(plain(tensor))).data_ptr()


class Steps:
    """Sees every step of PyTorch's optimizers in this process, from here to `close`, and has it wait for windows."""

    def __init__(self) -> None:
        self._open: list[Window] = []
        self._seen, self._captured = weakref.WeakSet[Optimizer](), weakref.WeakSet[Optimizer]()
        self._pid = os.getpid()
        hook = register_optimizer_step_pre_hook(partial(_before_step, weakref.ref(self)))
        self.close: Callable[[], object] = weakref.finalize(self, hook.remove)

    def open(self, window: Window) -> None:
        """Has the next step wait for a window."""
        self._open.append(window)
        window.over.add_done_callback(lambda _: self._open.remove(window))

    def quiet(self, state: Mapping[str, Any], frozen: bool) -> Quiet:
        """Returns the tensors of a save that nothing but a step writes. The steps until the next save count for that.

        state: the parts of the program's state · frozen: also parameters of modules that need no gradient
        """
        seen, self._seen = self._seen, weakref.WeakSet[Optimizer]()
        optimizers = [each for each in state.values() if isinstance(each, Optimizer)]
        modules = [each for each in state.values() if isinstance(each, nn.Module)]
        found = Quiet()
        for optimizer in (each for each in optimizers if each in seen):
            for owner in _tensors_of(optimizer):
                found.add(owner)
        for parameter in (each for module in modules for each in module.parameters() if frozen):
            if not parameter.requires_grad:
                found.add(parameter)
        unguarded = [each for optimizer in self._captured for owner in _tensors_of(optimizer) for each in plain(owner)]
        for each in (*unguarded, *(each for module in modules for each in _written_in_forward(module))):
            found.by_address.pop(each.data_ptr(), None)
        if not found.by_address:
            found.why = _reason(optimizers)
        return found

    def before(self, optimizer: Optimizer) -> None:
        """Is called before each step, on the thread that makes it."""
        if os.getpid() != self._pid:  # a child: the threads that would end a window are not in it
            return
        (self._captured if _is_captured() else self._seen).add(optimizer)
        for window in [*self._open]:
            window.wait()


def _before_step(steps: "weakref.ref[Steps]", optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    if torch.compiler.is_compiling():  # what is traced here would not wait, and must not break the graph
        return
    if found := steps():
        found.before(optimizer)


def _tensors_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield from (each for each in state.values() if isinstance(each, torch.Tensor))


def _written_in_forward(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yields weights that an embedding scales down (`max_norm`) when it is called."""
    for each in module.modules():
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.max_norm is not None:
            yield from plain(each.weight)


def _reason(optimizers: Sequence[Optimizer]) -> str:
    if not optimizers:
        return "the state has no optimizer of torch.optim whose step could wait"
    return "no step of an optimizer of the state was seen since the last save"


def _is_captured() -> bool:
    is_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return bool(is_in_use) and torch.cuda.is_current_stream_capturing()
