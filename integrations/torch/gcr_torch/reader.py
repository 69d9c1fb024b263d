"""A StorageReader of torch.distributed.checkpoint that loads a step of a run from gcr's store.

    dcp.load(state, storage_reader=Reader("/data/run"))                 # the last step that was saved

Every chunk is compared with its name before a byte of it is handed on. Of a shard only the chunks are read that have
the rows which a rank wants, so a load on more ranks reads little more than each rank needs.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from gcr.checkpoints.loading import READ_BYTES, Step
from gcr.checkpoints.run import Run, checked_step, run_in
from gcr.errors import UsageError
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage
from gcr_torch.held import Held
from gcr_torch.ids import step_of
from gcr_torch.pieces import Shard, an_object, rows_of
from gcr_torch.pipeline import Piece, Pipeline
from gcr_torch.record import PLANNER, from_json

Shards = dict[MetadataIndex, tuple[torch.dtype, torch.Size]]

_PIECE_BYTES = READ_BYTES  # of chunks that are read for a piece, or one row of a tensor


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
        most = max(1, _PIECE_BYTES // self._opened.thing.chunk_bytes) * self._opened.thing.chunk_bytes
        with Pipeline(most) as pipeline:
            pipeline.bring(self._pieces(plan.items, planner, most))
        self.close()
        done = Future[None]()
        done.set_result(None)
        return done

    def _shards(self) -> Shards:
        """Returns type and sizes of every shard."""
        tensors = self._metadata.state_dict_metadata.items()
        return {
            MetadataIndex(name, shard.offsets): (tensor.properties.dtype, shard.sizes)
            for name, tensor in tensors
            if isinstance(tensor, TensorStorageMetadata)
            for shard in tensor.chunks
        }

    def _pieces(self, items: list[ReadItem], planner: LoadPlanner, most: int) -> Iterator[Piece]:
        """Yields the pieces of all items, in order; see `rows_of`."""
        step, shards = self._opened.thing, self._shards()
        for item in items:
            file: str = self._metadata.storage_data[item.storage_index]
            if item.type == LoadItemType.BYTE_IO:
                yield an_object(step, file, item, planner)
                continue
            shard = self._shard(item, shards)
            target = planner.resolve_tensor(item).detach()
            if target.size() != item.lengths:
                raise UsageError(f"{item.dest_index.fqn}: {[*item.lengths]} do not fit into {[*target.size()]}")
            done = partial(planner.commit_tensor, item, target)
            yield from rows_of(shard, item, target, done, most)

    def _shard(self, item: ReadItem, shards: Shards) -> Shard:
        """Returns the shard that an item is a part of. Raises Damaged for a file of another size."""
        step, index = self._opened.thing, item.storage_index
        file, (dtype, sizes) = self._metadata.storage_data[index], shards[index]
        if step.size(file) != prod(sizes) * dtype.itemsize:
            raise Damaged.of(self.run.image(step.number), f"{index.fqn} has not the bytes of a {[*sizes]} of {dtype}")
        return Shard(step, file, dtype, sizes)
