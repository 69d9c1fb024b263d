"""Programs that the tests run on ranks. What they return needs no PyTorch to be read."""

import os
import pickle
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import torch
import torch._dynamo  # the first operation on a DTensor imports it, which takes a second
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from gcr.checkpoints.run import Run
from gcr.errors import UsageError
from gcr.torch.dcp import Reader, Stager, Writer
from gcr_torch import reader
from gcr_torch.together import Together

Spec = Mapping[str, Any]  # of a tensor: shape, dtype, seed, and the dimension it is sharded by, or None


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's elements, as bytes in row-major order."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    plain = local.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def differing(state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> list[str]:
    """Returns the names of the tensors that are not bit-equal."""
    assert state.keys() == expected.keys()
    return [name for name, each in expected.items() if not same(state[name], each)]


def whole_tensor(spec: Spec) -> torch.Tensor:
    """Returns the same tensor on every rank."""
    random = torch.Generator().manual_seed(spec["seed"])
    dtype = getattr(torch, spec["dtype"])
    size = torch.empty((), dtype=dtype).element_size()
    count = torch.Size(spec["shape"]).numel()
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (count * size,), dtype=torch.uint8, generator=random)
    return data.view(dtype).reshape(spec["shape"]) if count else torch.empty(spec["shape"], dtype=dtype)


def state_of(specs: Mapping[str, Spec], world: int, blank: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (world,)) if world > 1 else None
    for name, spec in specs.items():
        tensor = whole_tensor(spec)
        if mesh and spec["shard"] != "plain":
            placement = Replicate() if spec["shard"] is None else Shard(spec["shard"])
            tensor = distribute_tensor(tensor, mesh, [placement], src_data_rank=None)
        found[name] = torch.zeros_like(tensor) if blank else tensor
    return found


def failure(error: BaseException) -> list[str]:
    """Returns the classes of the errors of all ranks, in the order of the ranks, and the first one's text."""
    failures = getattr(error, "failures", {0: (error, None)})
    every = [each[0] for _, each in sorted(failures.items())]
    return [type(each).__name__ for each in every] + [str(every[0])]


SHARDED = {"a": {"shape": [8, 4], "dtype": "float32", "seed": 1, "shard": 0}}

# ---- programs: (rank, world, **arguments) -------------------------------------------------------------------------


def save(rank: int, world: int, store: str, steps: Mapping[int, Mapping[str, Spec]], **options: Any) -> None:
    """Saves steps one after the other."""
    for step, specs in steps.items():
        state = {"tensors": state_of(specs, world), "step": step, "extra": {"words": ["a", step], "rank": rank}}
        dcp.save(state, storage_writer=Writer(store, step=step, **options))


def load(
    rank: int, world: int, store: str, specs: Mapping[str, Spec], step: int | None = None, piece_bytes: int = 0
) -> Any:
    reader._PIECE_BYTES = piece_bytes or reader._PIECE_BYTES
    state = {"tensors": state_of(specs, world, blank=True), "step": 0, "extra": {"words": ["", 0], "rank": -1}}
    dcp.load(state, storage_reader=Reader(store, step=step))
    return state["step"], state["extra"]["words"], differing(state["tensors"], state_of(specs, world))


def try_save(rank: int, world: int, store: str, step: int, specs: Mapping[str, Spec]) -> Any:
    """Saves a step that may fail. Returns the failure, or None."""
    try:
        dcp.save({"tensors": state_of(specs, world), "step": step}, storage_writer=Writer(store, step=step))
    except Exception as error:
        return failure(error)
    except dcp.api.CheckpointException as error:
        return failure(error)
    return None


def kinds(rank: int, world: int, store: str, dtypes: Sequence[str]) -> list[str]:
    """Saves tensors of every kind that can be saved. Returns the names of those that come back with other bits."""
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    state = {dtype: whole_tensor({"shape": [17, 3], "dtype": dtype, "seed": 1}) for dtype in dtypes}
    state |= {
        "turned": base.t(),
        "every_second": base[:, ::2],
        "spread": base[0].expand(4, 10),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.complex(base, base + 1).conj(),
        "negated": torch.complex(base, base).conj().imag,
        "view_of_another": base[2:4],
        "parameter": nn.Parameter(base.clone()),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "number": torch.tensor(7, dtype=torch.int16),
        "none": torch.empty(3, 0, 2),
    }
    dcp.save({"a": state}, storage_writer=Writer(store, step=1))
    found = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in state.items()}
    dcp.load({"a": found}, storage_reader=Reader(store))
    turned = {"a": {"turned": torch.zeros(6, 10).t(), "every_second": torch.zeros(6, 10)[:, ::2]}}
    dcp.load(turned, storage_reader=Reader(store, step=1))
    wrong = differing(turned["a"], {name: state[name] for name in turned["a"]})
    return wrong + differing(found, state)


class Wrapping(torch.Tensor):
    """A tensor that has its elements in another one."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapping":
        made: Wrapping = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = [each.inner if isinstance(each, cls) else each for each in args]
        found = function(*unwrapped, **(kwargs or {}))
        return Wrapping(found) if isinstance(found, torch.Tensor) else found


def unsaveable() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kinds that are deprecated or in beta
        return {
            "meta": torch.empty(3, device="meta"),
            "sparse": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "wrapping": Wrapping(torch.ones(3)),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        }


def refusals(rank: int, world: int, store: str) -> dict[str, list[str]]:
    """Returns the failure to save each kind that cannot be saved, to stage it, and the failure to save twice."""
    found = {}
    for name, tensor in unsaveable().items():
        for way, call in {
            "saved": lambda kind: dcp.save(kind, storage_writer=Writer(store, step=1)),
            "staged": Stager().stage,
        }.items():
            try:
                call({"a": {name: tensor}})
            except BaseException as error:
                found[f"{name} {way}"] = failure(error)
    assert not Run(Path(store), "train").steps()
    for name, writer in {
        "once": Writer(store, step=1),
        "twice": Writer(store, step=1),
        "without a step": Writer(store),
        "without collectives": Writer(store, step=2),
    }.items():
        try:
            dcp.save({"a": torch.ones(3)}, storage_writer=writer, use_collectives="collectives" not in name)
        except BaseException as error:
            found[name] = failure(error)
    return found


def ids(rank: int, world: int, store: str) -> Any:
    """Saves and loads by `checkpoint_id`, as a program does that knows nothing of steps; a writer is sent first."""
    writer, reader = pickle.loads(pickle.dumps(Writer(store))), Reader(store)
    for number in (10, 20):
        dcp.save({"a": torch.full((3,), number)}, storage_writer=writer, checkpoint_id=f"{store}/step-{number}")
    found = []
    for number in (20, 10):
        state = {"a": torch.zeros(3, dtype=torch.int64)}
        dcp.load(state, storage_reader=reader, checkpoint_id=f"{store}/step-{number}/")
        found.append(state["a"].tolist())
    try:
        dcp.save({"a": torch.ones(3)}, storage_writer=writer, checkpoint_id="final")
    except UsageError as error:
        found.append(error.message)
    return found


class KeepingMore(DefaultSavePlanner):
    """A planner whose data is more than paths of keys."""

    def create_global_plan(self, all_plans: Any) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, replace(metadata, planner_data={"a": {1, 2}})


def other_planner(rank: int, world: int, store: str) -> Any:
    dcp.save({"a": torch.ones(3)}, storage_writer=Writer(store, step=1), planner=KeepingMore())
    state = {"a": torch.zeros(3)}
    dcp.load(state, storage_reader=(reader := Reader(store)))
    metadata = reader.read_metadata()
    reader.close()
    return state["a"].tolist(), metadata.planner_data


def cached_plans(rank: int, world: int, store: str) -> Any:
    """Saves with a planner that keeps its plans; the state changes once."""
    for step, size in ((1, 3), (2, 3), (3, 4), (4, 4)):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        state = {"a": torch.full((size,), step), "step": step}
        dcp.save(state, storage_writer=Writer(store, step=step), planner=planner)
    found = []
    for step, size in ((1, 3), (2, 3), (3, 4), (4, 4)):
        state = {"a": torch.zeros(size, dtype=torch.int64), "step": 0}
        dcp.load(state, storage_reader=Reader(store, step=step))
        found.append((state["step"], state["a"].tolist()))
    return found


def other_steps(rank: int, world: int, store: str) -> Any:
    """Each rank saves another step; then all load while they name different ones."""
    found = []
    for action in (
        lambda: dcp.save(state_of(SHARDED, world), storage_writer=Writer(store, step=5 + rank)),
        lambda: dcp.save({"a": torch.ones(3)}, storage_writer=Writer(store, step=1)),
        lambda: dcp.save({"a": torch.ones(3)}, storage_writer=Writer(store, step=2)),
        lambda: dcp.load({"a": torch.ones(3)}, storage_reader=Reader(store, step=1 + rank)),
    ):
        try:
            found.append(action() and None)
        except dcp.api.CheckpointException as error:
            found.append(failure(error))
    return found


STAGED = range(1, 7)


def staged(rank: int, world: int, store: str) -> Any:
    """Saves with async_save, and changes the tensors once they may change; several times with one stager."""
    stager, sizes = Stager(), []
    whole = whole_tensor({"shape": [64, 1000], "dtype": "float32", "seed": 1})
    mesh = init_device_mesh("cpu", (world,)) if world > 1 else None
    tensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None) if mesh else whole
    numbers = {"a": [0]}
    for step in STAGED:
        with torch.no_grad():
            tensor.fill_(step)
        numbers["a"][0] = step
        saving = dcp.async_save(
            {"tensor": tensor, "turned": torch.full((3, 4), step).t(), "numbers": numbers},
            storage_writer=Writer(store, step=step),
            async_stager=stager,
        )
        saving.staging_completion.result(20)
        with torch.no_grad():
            tensor.fill_(-1)
        numbers["a"][0] = -1
        saving.upload_completion.result(20)
        del saving
        sizes.append(stager.buffer_bytes)
    stager.close()
    found = []
    for step in STAGED:
        state = {"tensor": tensor, "turned": torch.zeros(4, 3, dtype=torch.int64), "numbers": {"a": [0]}}
        dcp.load(state, storage_reader=Reader(store, step=step))
        found.append((bits_equal_to(tensor, step), state["turned"].unique().tolist(), state["numbers"]["a"][0]))
    return found, sizes, sum(bits(each).numel() for each in (tensor, state["turned"]))


def bits_equal_to(tensor: torch.Tensor, value: int) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return torch.equal(local, torch.full_like(local, value))


def dies(rank: int, world: int, store: str, victim: int, point: str, faults: str) -> Any:
    """Saves step 1, then step 2, in which the victim is killed at a point of the save."""
    specs = {"a": {"shape": [40, 3000], "dtype": "float32", "seed": 1, "shard": 0}}
    assert try_save(rank, world, store, 1, specs) is None
    if rank == victim:
        Path(faults).write_text(f"checkpoint.{point} die\n")
        os.environ["GCR_FAULTS"] = faults
    specs["a"]["seed"] = 2
    return try_save(rank, world, store, 2, specs)


def goes_on(rank: int, world: int, store: str, victim: int, saves: int, after: float) -> None:
    """Saves one step after the other until the victim is killed, so many seconds after its first `saves` saves."""
    step = (Run(Path(store), "train").latest() or 0) if rank == 0 else None
    step = Together(20).agreed(lambda: step)
    for number in range(1000):
        if rank == victim and number == saves:
            Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        step += 1
        specs = {"a": {"shape": [40, 3000], "dtype": "float32", "seed": step, "shard": 0}}
        if try_save(rank, world, store, step, specs):
            return


def newest(rank: int, world: int, store: str) -> Any:
    """Loads the newest step of `goes_on`. Returns it, and the names of what differs."""
    if not (step := Run(Path(store), "train").latest()):
        return None, []
    specs = {"a": {"shape": [40, 3000], "dtype": "float32", "seed": step, "shard": 0}}
    state = {"tensors": state_of(specs, world, blank=True), "step": 0}
    dcp.load(state, storage_reader=Reader(store))
    assert state["step"] == step
    return step, differing(state["tensors"], state_of(specs, world))


def runs(rank: int, world: int, store: str, code: str) -> Any:
    """Runs a program of the documents. Returns the names that it has set to numbers."""
    found: dict[str, Any] = {}
    exec(code, found)
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
