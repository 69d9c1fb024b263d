"""Tensors of a device, saved by gcr's worker: under `gcr run` a save copies and pins nothing of them in this process.

A save waits for the stream that is current, while gcr makes all ready, and then for the worker's copy within the
device: that is the whole stall. Tensors that only an optimizer's next step writes may be read in place instead, and
that step waits (window.py). The bytes come to memory of the worker's, which this process may read. The tensors of the
staged state lie there.

Where that cannot be, the whole state is staged as without gcr (stager.py), and `Staged.why` says the reason.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import torch
from msgspec import Struct, field

from gcr.checkpoints.aside import Aside, Span, under_gcr
from gcr.checkpoints.region import Region
from gcr.errors import DeadlinePassed, GcrError, Refused
from gcr_torch import tensors
from gcr_torch.stager import Copied, NotReady, Ready, Stager, State
from gcr_torch.window import Quiet, Steps, Window, marks_of

log = logging.getLogger("gcr.torch")

Way = Literal["copy", "window", "ring", "staged"]
Asked = Literal["copy", "ring", "window", "staged"]

SILENCE_S = 60.0  # without a question to gcr, after it has let one pass: each costs the training its patience


class Staged(Struct, frozen=True):
    """A state on its way to host memory. `why`: the reason for the way, in words, or "".

    safe: done when every tensor may change, also if the state does not come · regions: where tensors of the state lie
    """

    state: Future[State]
    way: Way
    safe: Future[Any]
    why: str = ""
    regions: Sequence[Region] = ()
    window: Window | None = None


class Dense(Struct, frozen=True):
    """A tensor without gaps between its elements. `order`: its dimensions, the one with the largest stride first."""

    name: str
    tensor: torch.Tensor
    order: Sequence[int]

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def placed(self, memory: Any) -> torch.Tensor:
        """Returns the same tensor in these bytes."""
        if isinstance(self.order, range):
            return tensors.of_bytes(memoryview(memory), self.tensor.dtype, self.tensor.size())
        sizes = [self.tensor.size(dimension) for dimension in self.order]
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tensors.of_bytes(memoryview(memory), self.tensor.dtype, sizes).permute(inverse)


class Begun(Struct):
    """The worker's part in a save, as far as it has begun. `watched`: of the tensors that may be read in place."""

    ready: Ready = field(default_factory=Ready)
    reads: list[Aside] = field(default_factory=list)
    watched: dict[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    quiet_bytes: int = 0
    window: Window | None = None

    @property
    def in_place_bytes(self) -> int:
        return sum(read.in_place_bytes for read in self.reads)

    def give_up(self, error: BaseException) -> None:
        if self.window:
            self.window.end(error)
        for read in self.reads:
            read.give_up()


class AsideStager:
    """Stages states by the worker where it can, else by a Stager. Used by one thread at a time.

    asked: "copy", "staged": nothing is read in place · "ring": copied as far as there is room, the rest in place if it
    may be · "window": in place whatever may be, also parameters that need no gradient
    run: names the saves in gcr's events, with their steps
    """

    def __init__(self, stager: Stager, asked: Asked = "copy", run: str = "") -> None:
        self._stager, self._asked, self._run = stager, asked, run
        self._step: int | None = None  # that is being saved
        self._silent_until = 0.0
        self._prepared: Aside | None = None
        self._worked = False  # the last state was staged by the worker
        self._written: set[str] = set()  # tensors that were written while they were read: they are copied from then on
        self._steps = Steps() if asked in ("ring", "window") and under_gcr() else None

    def prepare(self, step: int) -> None:
        """Has gcr make all ready for `stage` while the caller finds its state, where the last one was the worker's."""
        self._step = step
        if self._worked and time.monotonic() >= self._silent_until:
            try:
                self._prepared = self._reading()
            except GcrError as error:  # `stage` says so; where gcr did not answer, it does not ask once more
                self._note(error)

    def unprepare(self) -> None:
        """Takes back what was prepared and not used."""
        if self._prepared:
            self._prepared.give_up()
            self._prepared = None

    def stage(self, state: State, parts: Mapping[str, Any]) -> Staged:
        """Returns the copy. Tensors in host memory may change, all others once `safe` is done.

        parts: what the state is of: modules and optimizers as they are. Raises NotSaveable, UsageError.
        """
        self._worked = False
        quiet = self._steps.quiet(parts, self._asked == "window") if self._steps else Quiet()
        begun = Begun()
        try:
            self._begin(state, quiet, begun)
            found = self._stager.staged(state, begun.ready, partial(self._settle, begun))
        except (GcrError, NotReady, OSError) as error:
            begun.give_up(error)
            self._note(error)
            why = str(error)
        except BaseException as error:  # Ctrl-C
            begun.give_up(error)
            raise
        else:
            self._worked = True
            return self._told(begun, found, quiet)
        found = self._stager.staged(state)
        return Staged(found.state, "staged", found.state, why, found.regions)

    def close(self) -> None:
        """Ends the watch on optimizers. No save may be under way."""
        if self._steps:
            self._steps.close()

    def _begin(self, state: State, quiet: Quiet, begun: Begun) -> None:
        """Has all tensors of devices saved. Raises Refused where there are none, and what speaks against it."""
        if self._asked == "staged":
            raise Refused("it was asked for")
        if not under_gcr():
            raise Refused("this program is not under gcr run")
        if time.monotonic() < self._silent_until:
            raise Refused("gcr did not answer a moment ago")
        by_device = defaultdict[torch.device, list[Dense]](list)
        for dense in [*_of_devices(state)]:
            by_device[dense.tensor.device].append(dense)
        if not by_device:
            raise Refused("no tensor of the state is on a device")
        for device, here in by_device.items():
            self._save(here, partial(_wait_for_work, device), quiet, begun)

    def _save(self, found: list[Dense], wait: Callable[[], object], quiet: Quiet, begun: Begun) -> None:
        found.sort(key=lambda dense: -dense.tensor.element_size())  # each begins at a multiple of its element then
        spans = list[Span]()
        for dense in found:
            watched = () if dense.name in self._written else quiet.watched(dense.tensor)
            spans.append(Span(dense.tensor.data_ptr(), dense.nbytes, bool(watched)))
            if watched:
                begun.watched[dense.name] = watched
                begun.quiet_bytes += dense.nbytes
        read, self._prepared = self._prepared or self._reading(), None
        begun.reads.append(read)
        read.begin(spans, wait, fills=self._asked == "ring")
        for number, dense in enumerate(found):
            begun.ready.tensors[id(dense.tensor)] = dense.placed(read.memory(number))
            begun.ready.kept.append(dense.tensor)
        begun.ready.waits.append(read.arrived.result)
        begun.ready.regions.append(read.region)

    def _reading(self) -> Aside:
        return Aside(run=self._run, step=self._step)

    def _settle(self, begun: Begun) -> None:
        """Returns when all is copied but what is read in place, which the next step of an optimizer waits for."""
        marks = marks_of(begun.watched)  # meanwhile
        for read in begun.reads:
            read.wait_for_copy()
        if self._steps and begun.in_place_bytes:
            begun.window = window = Window(marks, begun.reads)
            self._steps.open(window)
            begun.ready.waits.insert(0, window.over.result)  # before the others: it has the reason
            window.over.add_done_callback(lambda _: self._is_over(window))

    def _is_over(self, window: Window) -> None:
        self._written.update(window.written)
        self._note(window.over.exception())

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, DeadlinePassed):
            self._silent_until = time.monotonic() + SILENCE_S

    def _told(self, begun: Begun, found: Copied, quiet: Quiet) -> Staged:
        regions, window, is_asked = [*begun.ready.regions, *found.regions], begun.window, self._asked == "window"
        if window is None:
            safe = Future[None]()
            safe.set_result(None)
            return Staged(found.state, "copy", safe, quiet.why if is_asked else "", regions)
        aside = begun.quiet_bytes - begun.in_place_bytes
        if not aside:
            why = "it was asked for" if is_asked else "the device has no room for a copy"
            return Staged(found.state, "window", window.over, why, regions, window)
        why = f"the device has room for a copy of {100 * aside // begun.quiet_bytes} % of what a step writes"
        return Staged(found.state, "ring", window.over, why, regions, window)


def _of_devices(found: Any) -> Iterator[Dense]:
    """Yields the tensors with bytes on a device, each object once. Those that no save takes are refused later.

    Raises Refused for a tensor with gaps between its elements.
    """
    seen: set[int] = set()
    for name, tensor in tensors.named(found):
        if id(tensor) not in seen and tensors.has_device_bytes(tensor):
            seen.add(id(tensor))
            yield _dense(name, tensor)


def _dense(name: str, tensor: torch.Tensor) -> Dense:
    """Raises Refused for a tensor with gaps between its elements."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return Dense(name, tensor, range(tensor.dim()))
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride()[dimension])
    if tensor.is_conj() or tensor.is_neg() or not tensor.permute(order).is_contiguous():
        raise Refused(f"a tensor of {tuple(tensor.shape)} does not lie in one piece on {tensor.device}")
    return Dense(name, tensor, order)


def _wait_for_work(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
