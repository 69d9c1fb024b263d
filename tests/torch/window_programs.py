"""Programs about windows: tensors of the processor are taken for those of a device, and a worker is played."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Timer
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gcr_torch.aside
from gcr.checkpoints.aside import Span
from gcr.checkpoints.region import Region
from gcr.errors import GcrError, PeerGone
from gcr_torch import tensors, window
from gcr_torch.aside import AsideStager, Asked, Staged
from gcr_torch.stager import Stager
from gcr_torch.state import adapted, states_of

TOKEN = {"GCR_TOKEN": "t", "GCR_SOCKET": "s"}
LONG = 20.0


class Worker:
    """Plays gcr.checkpoints.aside.Aside: copies what is not in place at once, the rest when it is told to.

    room: bytes of what may be read in place that are copied aside with `fills`
    """

    room = 0
    reads: Sequence["Worker"] = ()

    def __init__(self, run: str = "", step: int | None = None) -> None:
        self.safe, self.arrived = Future[None](), Future[None]()
        self.given_up = False

    def begin(self, spans: Sequence[Span], wait: Callable[[], object], fills: bool) -> None:
        wait()
        Worker.reads = (*Worker.reads, self)
        self.spans, self.region = spans, Region.made(sum(span.bytes for span in spans))
        may = sum(span.bytes for span in spans if span.in_place)
        self.in_place_bytes = may - (min(Worker.room, may) if fills else 0)

    def wait_for_copy(self) -> None:
        self.copy(False)
        if not self.in_place_bytes:
            self.read()

    def memory(self, number: int) -> Any:
        return self.region.memory(sum(span.bytes for span in self.spans[:number]), self.spans[number].bytes)

    def copy(self, in_place: bool) -> None:
        for number, span in enumerate(self.spans):
            if span.in_place == in_place:
                ctypes.memmove(self.memory(number), span.address, span.bytes)

    def read(self) -> None:
        self.copy(True)
        self.safe.set_result(None)
        self.arrived.set_result(None)

    def dies(self) -> None:
        for each in (self.safe, self.arrived):
            each.set_exception(PeerGone("the worker"))

    def give_up(self) -> None:
        self.given_up = True


@contextmanager
def stager(asked: Asked = "ring", room: int = 0) -> Iterator[AsideStager]:
    os.environ.update(TOKEN)
    tensors.is_on_device = lambda tensor: tensor.dim() > 0
    gcr_torch.aside.Aside = Worker  # type: ignore[misc,assignment]
    Worker.room, Worker.reads = room, ()
    made = AsideStager(Stager(pin=False), asked)
    yield made
    made.close()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4, max_norm=1.0)
        self.norm = nn.BatchNorm1d(4)
        self.out, self.frozen = nn.Linear(4, 3), nn.Linear(3, 3).requires_grad_(False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.frozen(self.out(self.norm(self.words(text))))
        return found


def trained(model: nn.Module, *optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(torch.tensor([0, 1, 2])).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def staged(by: AsideStager, state: Mapping[str, Any]) -> Staged:
    return by.stage(states_of(adapted(state)), state)


def told(found: Staged, by: AsideStager, state: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Returns way and reason, and the names of the tensors that are read in place, whose read it ends."""
    lies = {span.address for read in Worker.reads for span in read.spans if span.in_place}
    names = [name for name, each in tensors.named(states_of(adapted(state))) if each.data_ptr() in lies]
    for read in Worker.reads:
        if not read.safe.done():
            read.read()
    found.state.result(LONG)
    assert found.safe.done()
    Worker.reads = ()
    return found.way, found.why, sorted(names)


def chooses(rank: int, world: int) -> Any:
    """Returns how states are saved, by a name of the case."""
    torch.manual_seed(1)
    model, found = Model(), {}
    optimizer = torch.optim.AdamW([*model.out.parameters(), model.norm.weight], foreach=True)
    words = torch.optim.SGD([model.words.weight], momentum=0.9)
    state = {"model": model, "optimizer": optimizer, "loose": torch.ones(7), "ema": [torch.ones(2)]}
    for asked, room in (("ring", 0), ("ring", 40), ("ring", 1 << 20), ("window", 1 << 20), ("copy", 0), ("staged", 0)):
        with stager(asked, room) as by:  # type: ignore[arg-type]
            trained(model, optimizer, words)
            found[f"{asked} {room}"] = told(staged(by, state), by, state)
    with stager() as by:
        found["no step"] = told(staged(by, state), by, state)
        trained(model, optimizer, words)
        plain = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        found["dictionaries"] = told(staged(by, plain), by, plain)
        trained(model, optimizer, words)
        both = {**state, "words": words}
        found["two"] = told(staged(by, both), by, both)
        window._is_captured, was = (lambda: True), window._is_captured
        trained(model, words)
        window._is_captured = was
        trained(model, optimizer, words)
        found["captured"] = told(staged(by, both), by, both)
    with stager("window") as by:
        trained(model, optimizer, words)
        found["window dictionaries"] = told(staged(by, plain), by, plain)
    return found


def waits(rank: int, world: int, options: Mapping[str, bool]) -> Any:
    """Returns whether the save has the bytes of its call, and the seconds that two steps waited."""
    model = Model()
    optimizer = torch.optim.AdamW([*model.out.parameters(), model.norm.weight], lr=0.1, **options)
    state = {"model": model, "optimizer": optimizer}
    with stager() as by:
        trained(model, optimizer)
        was = {name: each.clone() for name, each in tensors.named(states_of(adapted(state)))}
        found = staged(by, state)
        Timer(0.3, Worker.reads[0].read).start()
        trained(model, optimizer)
        now = dict(tensors.named(states_of(adapted(state))))
        have = dict(tensors.named(found.state.result(LONG)))
        moved = not torch.equal(now["model.out.weight"], was["model.out.weight"])
        assert found.window
        first = found.window.waited_s
        trained(model, optimizer)
        return (
            found.way,
            moved,
            [name for name in was if not torch.equal(have[name], was[name])],
            first,
            (found.window.waited_s - first),
        )


def is_written(rank: int, world: int, how: str) -> Any:
    """Returns the error of a save whose tensors something else writes, and how the next save saves them."""
    model = Model()
    optimizer = torch.optim.AdamW(model.out.parameters())
    state = {"model": model, "optimizer": optimizer}
    with stager() as by:
        trained(model, optimizer)
        found = staged(by, state)
        with torch.no_grad():
            if how == "custom":
                for parameter in model.out.parameters():
                    parameter -= 0.1 * parameter
            elif how == "state":
                optimizer.state[model.out.weight]["exp_avg"].zero_()
            else:
                model.out.weight.untyped_storage().resize_(0)
        (read,) = Worker.reads
        read.safe.set_result(None)
        error = found.state.exception(LONG)
        if how == "storage":
            return str(error)
        Worker.reads = ()
        trained(model, optimizer)
        return str(error), told(staged(by, state), by, state)[2]


def comes_to_an_end(rank: int, world: int) -> Any:
    """Returns what a step and a save come to: late, without a worker, in a child, and at Ctrl-C."""
    model = Model()
    optimizer = torch.optim.AdamW(model.out.parameters())
    state, found = {"model": model, "optimizer": optimizer}, []

    def begun() -> Staged:
        trained(model, optimizer)
        Worker.reads = ()
        return staged(by, state)

    with stager() as by:
        window.WAIT_S = 0.2
        late = begun()
        trained(model, optimizer)
        found.append((type(late.state.exception(LONG)).__name__, Worker.reads[0].given_up, begun().why))
    window.WAIT_S = 10 * LONG  # more than the test has
    with stager() as by:
        dead = begun()
        Worker.reads[0].dies()
        began = time.monotonic()
        trained(model, optimizer)
        found.append((type(dead.state.exception(LONG)).__name__, time.monotonic() - began < LONG / 2))
    with stager() as by:
        alone = begun()
        if not (child := os.fork()):
            trained(model, optimizer)
            os._exit(7)
        found.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), alone.safe.done()))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            trained(model, optimizer)
        except KeyboardInterrupt:
            Timer(0.2, Worker.reads[0].read).start()
            trained(model, optimizer)  # waits again
            found.append((alone.state.exception(LONG), alone.safe.done()))
    with stager() as by:
        compiled = torch.compile(optimizer.step, backend="eager")
        compiled()
        trained(model)
        compiled()
        found.append(staged(by, state).way)
    return found


def shards(rank: int, world: int) -> Any:
    """Returns how the shards of FSDP2 are saved."""
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    with stager() as by:
        trained(model, optimizer)
        found = told(staged(by, state), by, state)
        trained(model, optimizer)
        late = staged(by, state)
        with torch.no_grad():
            model[1].weight.mul_(2)  # type: ignore[operator,union-attr]
        Worker.reads[-1].safe.set_result(None)
        error = late.state.exception(LONG)
        return found, isinstance(error, GcrError) and str(error)
