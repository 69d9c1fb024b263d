"""A StorageReader of torch.distributed.checkpoint that loads a step of a run from gcr's store.

    dcp.load(state, storage_reader=Reader("/data/run"))                 # the last step that was saved

Every chunk is compared with its name before a byte of it is handed on. Of a shard only the chunks are read that have
the rows which a rank wants, so a load on more ranks reads little more than each rank needs.
"""

import io
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

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

Shards = dict[MetadataIndex, tuple[torch.dtype, torch.Size]]

_AHEAD = 4  # pieces that are read while one is copied to its tensor
_PIECE_BYTES = 32 << 20  # rows of a tensor that are read together, or one row


class _Piece(NamedTuple):
    """Some rows of the part of a tensor that an item wants, or all of what is no tensor with rows."""

    item: ReadItem
    first: int = 0
    rows: int = 1
    whole: int = 1  # rows that the item wants

    @property
    def last(self) -> bool:
        return self.first + self.rows == self.whole


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
        shards, target = self._shards(), torch.empty(0)
        for piece, found in self._read_ahead(self._pieces(plan.items, shards)):
            item = piece.item
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, found)
                continue
            if piece.first == 0:
                target = planner.resolve_tensor(item).detach()
                if target.size() != item.lengths:
                    raise UsageError(f"{item.dest_index.fqn}: {[*item.lengths]} do not fit into {[*target.size()]}")
            part = target.narrow(0, piece.first, piece.rows) if target.dim() else target
            part.copy_(found)
            if piece.last:
                planner.commit_tensor(item, target)
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

    def _pieces(self, items: list[ReadItem], shards: Shards) -> Iterator[tuple[_Piece, Callable[[memoryview], Any]]]:
        """Yields pieces in order, each with the call that reads it, into memory that it is given if that is enough."""
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                yield _Piece(item), partial(self._read_object, item)
                continue
            dtype, sizes = self._checked(item, shards)
            if not sizes:
                yield _Piece(item), partial(self._read_rows, item, dtype, sizes, 0, 1)
                continue
            whole = item.lengths[0]
            step = max(1, _PIECE_BYTES // max(1, prod(sizes[1:]) * dtype.itemsize))
            for first in range(0, max(1, whole), step):
                count = min(step, whole - first)
                begin = item.storage_offsets[0] + first
                read = partial(self._read_rows, item, dtype, sizes, begin, begin + count)
                yield _Piece(item, first, count, whole), read

    def _read_ahead(self, pieces: Iterator[tuple[_Piece, Callable[[memoryview], Any]]]) -> Iterator[tuple[_Piece, Any]]:
        """Yields pieces in order, each with its tensor or its bytes, until the next one. A few more are read meanwhile.

        Their memory is used again and again: to touch fresh memory may take longer than to read.
        """
        size = _PIECE_BYTES + 2 * self._opened.thing.chunk_bytes
        free = [memoryview(bytearray(size)) for _ in range(_AHEAD + 1)]
        begun: deque[tuple[_Piece, Pending[Any], memoryview]] = deque()
        with ThreadPoolExecutor(_AHEAD, "gcr-load") as pool:
            try:
                for piece, read in pieces:
                    room = free.pop()
                    begun.append((piece, pool.submit(read, room), room))
                    if not free:
                        yield from _first_of(begun, free)
                while begun:
                    yield from _first_of(begun, free)
            finally:
                for _, each, _ in begun:
                    each.cancel()

    def _checked(self, item: ReadItem, shards: Shards) -> tuple[torch.dtype, torch.Size]:
        """Returns type and sizes of the shard that an item is a part of. Raises Damaged for a file of another size."""
        step, index = self._opened.thing, item.storage_index
        dtype, sizes = shards[index]
        if step.size(self._metadata.storage_data[index]) != prod(sizes) * dtype.itemsize:
            raise Damaged.of(self.run.image(step.number), f"{index.fqn} has not the bytes of a {[*sizes]} of {dtype}")
        return dtype, sizes

    def _read_object(self, item: ReadItem, _room: memoryview) -> io.BytesIO:
        step, file = self._opened.thing, self._metadata.storage_data[item.storage_index]
        return io.BytesIO(step.read(file, 0, step.size(file)))

    def _read_rows(
        self, item: ReadItem, dtype: torch.dtype, sizes: torch.Size, begin: int, end: int, room: memoryview
    ) -> torch.Tensor:
        """Returns rows of a shard, of each the part that the item wants."""
        file, row = self._metadata.storage_data[item.storage_index], prod(sizes[1:]) * dtype.itemsize
        data = self._opened.thing.read(file, begin * row, end * row, room)
        found = of_bytes(data, dtype, (end - begin, *sizes[1:]) if sizes else ())
        for dimension in range(1, len(sizes)):
            found = found.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
        return found


def _first_of(
    begun: deque[tuple[_Piece, Pending[Any], memoryview]], free: list[memoryview]
) -> Iterator[tuple[_Piece, Any]]:
    """Yields the piece that was begun first, and frees its memory afterwards."""
    piece, found, room = begun.popleft()
    yield piece, found.result()
    free.append(room)
