"""Tensors of a device, copied by gcr's worker: under `gcr run` a save copies and pins nothing of them in this process.

A save waits for the stream that is current, while gcr makes all ready, and then for the worker's copy within the
device: that is the whole stall. The bytes come to memory of the worker's, which this process may read. The tensors of
the staged state lie there.

Where that cannot be, the whole state is staged as without gcr (stager.py), and `Staged.why` says the reason.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import torch
from msgspec import Struct

from gcr.checkpoints.aside import Aside, Span, under_gcr
from gcr.checkpoints.region import Region
from gcr.errors import DeadlinePassed, GcrError, Refused
from gcr_torch import tensors
from gcr_torch.stager import NotReady, Ready, Stager, State

log = logging.getLogger("gcr.torch")

Way = Literal["copy", "staged"]

SILENCE_S = 60.0  # without a question to gcr, after it has let one pass: each costs the training its patience


class Staged(Struct, frozen=True):
    """A state on its way to host memory.

    why: the reason for the way `staged`, in words · regions: memory where tensors of the state lie
    """

    state: Future[State]
    way: Way
    why: str = ""
    regions: Sequence[Region] = ()


class Dense(Struct, frozen=True):
    """A tensor without gaps between its elements. `order`: its dimensions, the one with the largest stride first."""

    tensor: torch.Tensor
    order: Sequence[int]

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def placed(self, memory: Any) -> torch.Tensor:
        """Returns the same tensor in these bytes."""
        sizes = [self.tensor.size(dimension) for dimension in self.order]
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tensors.of_bytes(memoryview(memory), self.tensor.dtype, sizes).permute(inverse)


class AsideStager:
    """Stages states by the worker where it can, else by a Stager. Used by one thread at a time."""

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._silent_until = 0.0

    def stage(self, state: State) -> Staged:
        """Returns the copy. With the way `copy` every tensor may change. Raises NotSaveable, UsageError."""
        try:
            ready = self._ready(state)
            found = self._stager.staged(state, ready)
            return Staged(found.state, "copy", regions=[*ready.regions, *found.regions])
        except (GcrError, NotReady, OSError) as error:
            if isinstance(error, DeadlinePassed):
                self._silent_until = time.monotonic() + SILENCE_S
            why = str(error)
        found = self._stager.staged(state)
        return Staged(found.state, "staged", why, found.regions)

    def _ready(self, state: State) -> Ready:
        """Has all tensors of devices copied. Raises Refused where there are none, and what speaks against it."""
        if not under_gcr():
            raise Refused("this program is not under gcr run")
        if time.monotonic() < self._silent_until:
            raise Refused("gcr did not answer a moment ago")
        found = [_dense(tensor) for tensor in _of_devices(state)]
        if not found:
            raise Refused("no tensor of the state is on a device")
        by_device = defaultdict[torch.device, list[Dense]](list)
        for dense in found:
            by_device[dense.tensor.device].append(dense)
        ready = Ready()
        for device, here in by_device.items():
            self._copy(here, partial(_wait_for_work, device), ready)
        return ready

    def _copy(self, found: list[Dense], wait: Callable[[], object], ready: Ready) -> None:
        found.sort(key=lambda dense: -dense.tensor.element_size())  # each begins at a multiple of its element then
        aside = Aside.of([Span(dense.tensor.data_ptr(), dense.nbytes) for dense in found], wait)
        for number, dense in enumerate(found):
            ready.tensors[id(dense.tensor)] = dense.placed(aside.memory(number))
            ready.kept.append(dense.tensor)
        ready.waits.append(aside.arrived.result)
        ready.regions.append(aside.region)


def _of_devices(found: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors with bytes on a device, each object once. Those that no save takes are refused later."""
    seen: set[int] = set()
    for tensor in tensors.plain(found):
        if id(tensor) in seen or tensors.unsaveable(tensor):
            continue
        if tensor.numel() and tensors.is_on_device(tensor):
            seen.add(id(tensor))
            yield tensor


def _dense(tensor: torch.Tensor) -> Dense:
    """Raises Refused for a tensor with gaps between its elements."""
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride()[dimension])
    if tensor.is_conj() or tensor.is_neg() or not tensor.permute(order).is_contiguous():
        raise Refused(f"a tensor of {tuple(tensor.shape)} does not lie in one piece on {tensor.device}")
    return Dense(tensor, order)


def _wait_for_work(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
