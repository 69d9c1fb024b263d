"""Trainings with a Checkpointer that the tests run on ranks. What they return needs no PyTorch to be read."""

import hashlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gcr.checkpoints import compression, helper
from gcr.errors import GcrError
from gcr.faults import LONGEST_HOLD
from gcr.image.pack import pace
from gcr.torch import Checkpointer
from gcr_torch import tensors
from gcr_torch.state import _wraps_nothing, adapted, states_of

WIDTH = 12


class Loader:
    """A stateful object, as a data loader is."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def training(world: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": Loader(), "note": f"seed {seed}"}


def train(state: dict[str, Any], rank: int) -> None:
    data = torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(100 * state["loader"].at + rank))
    state["optimizer"].zero_grad()
    state["model"](data).square().sum().backward()
    state["optimizer"].step()
    state["schedule"].step()
    state["loader"].at += 1


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digests(state: dict[str, Any]) -> dict[str, Any]:
    """Returns what a training is, the same on any number of ranks."""
    found: dict[str, Any] = {"at": state["loader"].at, "note": state["note"], "lr": state["schedule"].get_last_lr()}
    for name, parameter in state["model"].named_parameters():
        kept = state["optimizer"].state.get(parameter, {})
        for key, value in {"": parameter, **kept}.items():
            found[f"{name} {key}"] = hashlib.sha256(whole(value.detach()).contiguous().numpy().tobytes()).hexdigest()
    return found


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yields what gcr's logger of PyTorch says."""
    said: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log = logging.getLogger("gcr.torch")
    log.addHandler(keeps := Keeps())
    try:
        yield said
    finally:
        log.removeHandler(keeps)


# ---- programs: (rank, world, **arguments) -------------------------------------------------------------------------


def trains(rank: int, world: int, store: str, steps: int, save_every: int = 1) -> Any:
    """Begins where the run stands. Returns the first step, and what the training is in the end."""
    state = training(world, seed=1)
    with Checkpointer(store) as keeper:
        first = keeper.load_latest(into=state) or 0
        for step in range(first + 1, steps + 1):
            train(state, rank)
            if step % save_every == 0:
                keeper.save(step, state)
    return first, digests(state)


def looks(rank: int, world: int, store: str) -> Any:
    """Loads the last step into another training. Returns it, and what the training is then."""
    state = training(world, seed=2)
    with Checkpointer(store) as keeper:
        return keeper.load_latest(into=state), digests(state)


def rests(rank: int, world: int, store: str) -> Any:
    """Saves seven steps of a state of which a part rests. Returns the bytes of packs on the disk after each."""
    state, found = {"moves": torch.rand(1 << 20), "rests": torch.rand(1 << 16)}, []
    with Checkpointer(store, keep_last=1, alone=True) as keeper:
        for step in range(7):
            state["moves"] += 1
            keeper.save(step, state)
            keeper.wait()
            found.append(sum(path.stat().st_size for path in (Path(store) / "packs").iterdir()))
    return found


def compresses(rank: int, world: int, store: str, slow_disk: str | None, compress: str) -> Any:
    """Saves three steps, all by the save helper. Returns of each whether it is compressed, and the last decision."""
    if slow_disk:
        os.environ["PYTHONPATH"] = os.pathsep.join([slow_disk, *filter(None, [os.environ.get("PYTHONPATH")])])
    helper.WORTH_BYTES = compression.LEAST = 1 << 20
    pace.encode = None  # so that this process cannot
    state, stored = training(world, seed=1) | {"more": torch.zeros(0)}, []
    with Checkpointer(store, compress=compress, keep_last=2) as keeper:
        for step in (1, 2, 3):
            train(state, rank)
            state["more"] = torch.randn(1 << 22, generator=torch.Generator().manual_seed(10 * step)).bfloat16()
            keeper.save(step, state).durable.result()
            costs = keeper.run.manifest(step).costs
            stored.append((costs.bytes_stored or costs.bytes_written) / costs.bytes_written)
        why = keeper.compression
    other = training(world, seed=2) | {"more": torch.zeros(1 << 22).bfloat16()}
    with Checkpointer(store) as keeper:
        last, verified = keeper.load_latest(into=other), keeper.verify(2)
    same = digests(other) == digests(state) and torch.equal(other["more"], state["more"])
    return stored, why, last, same, verified > 0


def keeps(rank: int, world: int, store: str) -> Any:
    """Saves nine steps under a rule. Returns the steps that are left, and facts about the saves."""
    state = {"a": torch.zeros(1000), "step": 0}
    with Checkpointer(store, keep_last=2, keep_every=4) as keeper:
        assert keeper.load_latest(into=state) is None
        saves = []
        for step in range(1, 10):
            state["a"] += 1
            state["step"] = step
            saves.append(keeper.save(step, state))
        keeper.wait()
        if world > 1:
            dist.barrier()  # rank 0 removes old steps before it comes here
        assert all(save.durable.result() is None and save.safe.done() and save.blocked_s >= 0 for save in saves)
        assert rank or keeper.verify(9) > 0  # a reader would delay the removal of chunks
        return list(keeper.steps()), keeper.latest()


def removes(rank: int, world: int, store: str) -> Any:
    """Saves while an old step is being removed. Returns the steps there were then, and those in the end."""
    state, may_remove = {"a": torch.zeros(1000)}, Event()
    with Checkpointer(store, keep_last=1) as keeper:
        remove = keeper.run.remove

        def late(going: Any) -> None:
            assert may_remove.wait(20)
            remove(going)

        with patch.object(type(keeper.run), "remove", lambda _run, going: late(going)):
            for step in (1, 2):
                keeper.save(step, state).durable.result(20)
            third = keeper.save(3, state)
            meanwhile = third.blocked_s < 10, third.durable.done(), list(keeper.steps())
            may_remove.set()
            keeper.wait()
        return meanwhile, list(keeper.steps())


def fails(rank: int, world: int, store: str) -> Any:
    """Saves that one rank cannot make, and that no rank can; the training goes on."""
    found, good = [], torch.ones(3)
    with logged() as said, Checkpointer(store) as keeper:
        for step, state in {
            1: {"a": torch.empty(3, device="meta") if rank == world - 1 else good},
            2: {"a": good},
            -3: {"a": good},
            4: {"a": good, "lock": Unlike()},
            5: {"a": good, "optimizer": torch.optim.SGD([nn.Parameter(good)])},
            6: {"a": good},
        }.items():
            save = keeper.save(step, state)
            error = save.durable.exception(30)
            found.append(f"{type(error).__name__}: {type(error.__cause__).__name__}" if error else None)
        second = Checkpointer(store) if world == 1 else None
        if second:
            error = second.save(7, {"a": good}).durable.exception(30)
            found.append(f"{type(error).__name__}: {type(error.__cause__).__name__}")
            second.close()
        return found, list(keeper.steps()), len(said)


class Unlike:
    """An object that cannot be copied."""

    def __deepcopy__(self, _memo: object) -> "Unlike":
        raise RuntimeError("not this one")


def raises(rank: int, world: int, store: str) -> Any:
    """Has the error of a save raised by the next call."""
    found = []
    keeper = Checkpointer(store, on_error="raise")
    keeper.save(1, {"a": torch.empty(3, device="meta")})
    for call in (keeper.wait, lambda: keeper.save(2, {"a": torch.ones(3)}), keeper.wait, keeper.close):
        try:
            call()
            found.append(None)
        except GcrError as error:
            found.append(f"{error.code} {error.exit}: {error.message}")
    return found, list(keeper.steps())


def crowds(rank: int, world: int, store: str, faults: str, when_full: str, in_flight: int) -> Any:
    """Saves while an earlier save is held up. Returns which saves were skipped, and the steps."""
    held = Path(f"{faults}.held")
    if rank == 0:
        Path(faults).write_text(f"checkpoint.commit hold {held}\n")
        os.environ["GCR_FAULTS"] = faults
    with Checkpointer(store, in_flight=in_flight, when_full=when_full) as keeper:
        saves = [keeper.save(1, {"a": torch.ones(3)})]
        _wait_for(held.exists)
        if when_full == "skip":
            saves += [keeper.save(step, {"a": torch.ones(3)}) for step in (2, 3)]
            early = held.exists()
            if world > 1:
                dist.barrier()
            held.unlink(missing_ok=True)
        else:
            saves += [keeper.save(step, {"a": torch.full((3,), step)}) for step in range(2, in_flight + 1)]
            early = held.exists() and not any(save.durable.done() for save in saves)
            held.unlink(missing_ok=True)
            saves.append(keeper.save(9, {"a": torch.ones(3)}))
        keeper.wait()
        kinds = [type(save.durable.exception()).__name__ for save in saves]
        return early, [save.skipped for save in saves], kinds, list(keeper.steps())


def _wait_for(there: Any) -> None:
    end = time.monotonic() + LONGEST_HOLD / 2
    while not there():
        assert time.monotonic() < end
        time.sleep(0.005)


def loses_a_rank(rank: int, world: int, store: str, faults: str) -> Any:
    """Goes on with its training after the last rank was killed in the middle of a save."""
    keeper = Checkpointer(store, timeout_s=10)
    keeper.save(1, {"a": torch.full((3,), 1)}).durable.result(30)
    if rank == world - 1:
        Path(faults).write_text("checkpoint.share_written die\n")
        os.environ["GCR_FAULTS"] = faults
    error = keeper.save(2, {"a": torch.full((3,), 2)}).durable.exception(30)
    keeper.close()
    return type(error).__name__, list(keeper.steps())


def is_interrupted(rank: int, world: int, store: str, faults: str) -> Any:
    """Gets Ctrl-C while it waits for a save. Returns whether it did, and the steps."""
    held, interrupted = Path(f"{faults}.held"), False
    Path(faults).write_text(f"checkpoint.commit hold {held}\n")
    os.environ["GCR_FAULTS"] = faults
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Checkpointer(store) as keeper:
        keeper.save(1, {"a": torch.ones(3)})
        _wait_for(held.exists)
        Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            keeper.save(2, {"a": torch.ones(3)})
        except KeyboardInterrupt:
            interrupted = held.exists()
        held.unlink()
        keeper.save(3, {"a": torch.ones(3)})
    return interrupted, [*keeper.steps()]


def names(rank: int, world: int, store: str) -> Any:
    """Returns for each module and optimizer whether its state is read as it is, and whether it is as PyTorch's."""
    found = {}
    for name, (module, optimizer) in _named_pairs().items():
        state = states_of(adapted({"model": module, "optimizer": optimizer}))
        mine = {"model": get_model_state_dict(module), "optimizer": get_optimizer_state_dict(module, optimizer)}
        found[name] = (_wraps_nothing(module), _told(state) == _told(mine))
    return found


def _named_pairs() -> dict[str, tuple[nn.Module, Any]]:
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    frozen[0].requires_grad_(False)
    groups = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    checked = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4)))
    found = {
        "plain": (plain, torch.optim.AdamW(plain.parameters())),
        "fresh": (frozen, torch.optim.AdamW(frozen.parameters())),
        "tied": (tied, torch.optim.Adam(tied.parameters())),
        "frozen": (frozen, torch.optim.AdamW(frozen[1].parameters())),
        "groups": (
            groups,
            torch.optim.SGD(
                [{"params": groups[1].parameters()}, {"params": groups[0].parameters(), "lr": 1}], 0.1, 0.9
            ),
        ),
        "wrapped": (checked, torch.optim.AdamW(checked.parameters())),
        "compiled": (torch.compile(plain), torch.optim.AdamW(plain.parameters())),
    }
    for name, (module, optimizer) in found.items():
        if name not in ("fresh", "compiled"):
            module(torch.rand(3, 4)).sum().backward()
            optimizer.step()
    return found


def _told(state: Any) -> Any:
    """Returns a state with the addresses of its tensors, and the values of their scalars."""
    if isinstance(state, torch.Tensor):
        return state.item() if not state.dim() else (state.data_ptr(), tuple(state.shape))
    if isinstance(state, dict):
        return {key: _told(value) for key, value in state.items()}
    return [_told(each) for each in state] if isinstance(state, list) else state


def makes(rank: int, world: int, store: str, arguments: dict[str, Any]) -> str | None:
    """Makes a Checkpointer. Returns the code of the error."""
    try:
        Checkpointer(store, **arguments)
    except GcrError as error:
        return error.code
    return None


def stages(rank: int, world: int, store: str, socket: str) -> Any:
    """Returns the ways of saves where gcr's worker cannot copy, and whether what they saved is right.

    Nothing may be said to the program meanwhile: a warning is an error.
    """
    ways, state = [], {"a": torch.arange(9), "b": torch.rand(3, 4)[:, 1:3], "c": 5}
    tensors.is_on_device = lambda _tensor: True
    with catch_warnings(action="error"), Checkpointer(store) as keeper:
        for step in range(4):
            if step == 1:
                os.environ.update(GCR_SOCKET=socket, GCR_TOKEN="t")
            save = keeper.save(step, state if step == 1 else {**state, "b": state["b"].clone()})
            save.durable.result(30)
            loaded = {"a": torch.zeros(9, dtype=torch.int64), "b": torch.zeros(3, 2), "c": 0}
            keeper.load(step, loaded)
            right = all(torch.equal(loaded[name], state[name]) for name in "ab") and loaded["c"] == 5
            ways.append((save.way, save.why, right))
    return ways


def saved_at(step: int, rank: int) -> torch.Tensor:
    """Returns what a rank of `is_killed` has at a step; its second half never changes."""
    changing = torch.rand(60_000, generator=torch.Generator().manual_seed(2 * step + rank))
    return torch.cat([changing, torch.rand(60_000, generator=torch.Generator().manual_seed(rank))])


def is_killed(rank: int, world: int, store: str, victim: int, saves: int, after: float) -> Any:
    """Loads the newest step, and saves until the victim is killed, so many seconds after so many saves.

    Returns the step, whether it was as saved, and the last step of which this rank was told that it is saved.
    """
    state = {f"mine-{rank}": torch.zeros(120_000), "step": 0}
    with Checkpointer(store, keep_last=2, in_flight=2, timeout_s=20) as keeper:
        step = found = keeper.load_latest(into=state) or 0
        right = not found or (state["step"] == found and torch.equal(state[f"mine-{rank}"], saved_at(found, rank)))
        begun = []
        while all(not save.durable.done() or not save.durable.exception() for save in begun):
            if rank == victim and len(begun) == saves:
                Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            step += 1
            begun.append(keeper.save(step, {f"mine-{rank}": saved_at(step, rank), "step": step}))
    return found, right, max([save.step for save in begun if not save.durable.exception()], default=found)
