"""A StorageReader of torch.distributed.checkpoint that loads a step of a run from gcr's store.

    dcp.load(state, storage_reader=Reader("/data/run"))                 # the last step that was saved

Every chunk is compared with its name before a byte of it is handed on. Of a shard only the chunks are read that have
the rows which a rank wants, so a load on more ranks reads little more than each rank needs.
"""

import io
import os
import pickle
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from gcr.checkpoints.loading import Step
from gcr.checkpoints.run import Run, checked_step, run_in
from gcr.errors import UsageError
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage
from gcr_torch.held import Held
from gcr_torch.ids import step_of
from gcr_torch.record import PLANNER, from_json
from gcr_torch.tensors import of_bytes

_AHEAD = 4  # items that are read while one is copied to its tensor


class Reader(StorageReader):
    """Loads steps of a run.

    store, cache: as of Writer · step: None: the last one, or that of a load's `checkpoint_id`
    It keeps the files of a step from `read_metadata` to the end of `read_data`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Run,
        *,
        run: str = "train",
        step: int | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        """Touches nothing yet. Raises UsageError for a wrong URL, name or step; NoHome."""
        super().__init__()
        self.run = store if isinstance(store, Run) else run_in(store, run, cache)
        self._wanted = None if step is None else checked_step(step)
        self._opened = Held[Step]()
        self._metadata = Metadata({})

    @property
    def step(self) -> int:
        """Returns the step that is loaded. Raises NoSuchImage if the run has none, StoreUnusable, WrongKey."""
        found = self.run.latest() if self._wanted is None else self._wanted
        if found is None:
            raise NoSuchImage(f"run {self.run.name} in {self.run.folder} has no step", hint="is its disk there?")
        return found

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether a step can be read off it."""
        return step_of(checkpoint_id) is not None

    def close(self) -> None:
        """Lets go of the step of a load that failed; does nothing otherwise."""
        self._opened.close()

    # ---- called by DCP, in this order ---------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another load. Raises UsageError for a `checkpoint_id` without a step."""
        self.close()
        if checkpoint_id is not None:
            if (found := step_of(checkpoint_id)) is None:
                raise UsageError(f"checkpoint_id {checkpoint_id!r} names no step", hint="such as 1000 or run/step-1000")
            self._wanted = checked_step(found)

    # Without **kwargs: DCP would ask a second time, for the metadata of one rank, and hide the first error.
    def read_metadata(self) -> Metadata:
        """Opens the step. Raises NoSuchImage, Damaged, WrongImage, StoreUnusable, WrongKey."""
        self.close()
        step = self._open()
        said = from_json(step.record, self.run.image(step.number))
        planner = said.paths if said.paths is not None else pickle.loads(step.read(PLANNER, 0, step.size(PLANNER)))
        return replace(said.metadata, planner_data=planner, storage_data=said.files)

    def _open(self) -> Step:
        with ExitStack() as begun:
            step = begun.enter_context(Step(self.run, self.step))
            self._opened.hold(step, begun.pop_all().close)
        return step

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return replace(plan, storage_data=self._opened.thing.number)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raises WrongImage if ranks have opened different steps: one was saved just then."""
        if len(steps := {plan.storage_data for plan in plans}) > 1:
            text = f"run {self.run.name}: ranks have opened different steps: {', '.join(map(str, sorted(steps)))}"
            raise WrongImage(text, hint="name the step")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads all items into the tensors of the planner. Raises Damaged, StoreUnusable."""
        shards = self._shards()
        for item, found in self._read_ahead(plan.items, shards):
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, found)
                continue
            target = planner.resolve_tensor(item).detach()
            if target.size() != found.size():
                raise UsageError(f"{item.dest_index.fqn}: {[*found.size()]} do not fit into {[*target.size()]}")
            target.copy_(found)
            planner.commit_tensor(item, target)
        self.close()
        done = Future[None]()
        done.set_result(None)
        return done

    def _shards(self) -> dict[MetadataIndex, tuple[torch.dtype, torch.Size]]:
        """Returns type and sizes of every shard."""
        tensors = self._metadata.state_dict_metadata.items()
        return {
            MetadataIndex(name, shard.offsets): (tensor.properties.dtype, shard.sizes)
            for name, tensor in tensors
            if isinstance(tensor, TensorStorageMetadata)
            for shard in tensor.chunks
        }

    def _read_ahead(
        self, items: list[ReadItem], shards: dict[MetadataIndex, tuple[torch.dtype, torch.Size]]
    ) -> Iterator[tuple[ReadItem, Any]]:
        """Yields items in order, each with its tensor or its bytes. A few more are read meanwhile."""
        with ThreadPoolExecutor(_AHEAD, "gcr-load") as pool:
            begun: deque[tuple[ReadItem, Pending[Any]]] = deque()
            try:
                for item in items:
                    begun.append((item, pool.submit(self._read, item, shards)))
                    if len(begun) > _AHEAD:
                        before, found = begun.popleft()
                        yield before, found.result()
                while begun:
                    before, found = begun.popleft()
                    yield before, found.result()
            finally:
                for _, each in begun:
                    each.cancel()

    def _read(self, item: ReadItem, shards: dict[MetadataIndex, tuple[torch.dtype, torch.Size]]) -> Any:
        """Returns the part of a shard that an item wants, or an object's bytes."""
        step, index = self._opened.thing, item.storage_index
        file = self._metadata.storage_data[index]
        if item.type == LoadItemType.BYTE_IO:
            return io.BytesIO(step.read(file, 0, step.size(file)))
        dtype, sizes = shards[index]
        row = prod(sizes[1:]) * dtype.itemsize
        if step.size(file) != (sizes[0] if sizes else 1) * row:
            raise Damaged.of(self.run.image(step.number), f"{index.fqn} has not the bytes of a {[*sizes]} of {dtype}")
        if not sizes:
            return of_bytes(step.read(file, 0, row), dtype, ())
        first, count = item.storage_offsets[0], item.lengths[0]
        found = of_bytes(step.read(file, first * row, (first + count) * row), dtype, (count, *sizes[1:]))
        for dimension in range(1, len(sizes)):
            found = found.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
        return found
