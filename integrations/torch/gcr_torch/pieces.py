"""The pieces that a step is loaded in: some rows of a tensor, or an object."""

import io
from collections.abc import Callable, Iterator
from functools import partial

import torch
from msgspec import Struct
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from gcr.checkpoints.loading import Bytes, Step
from gcr_torch import pipeline
from gcr_torch.pipeline import Ending, Slot
from gcr_torch.tensors import of_bytes


class Range(Struct, frozen=True):
    """Bytes of a file of a step."""

    step: Step
    file: str
    begin: int
    end: int

    @property
    def room(self) -> int:
        return self.step.room(self.file, self.begin, self.end)

    def read(self, room: memoryview) -> Bytes:
        return self.step.begin(self.file, self.begin, self.end, room)


class Shard(Struct, frozen=True):
    """A shard of a tensor in a step: a file of rows without gaps. `sizes`: in each dimension."""

    step: Step
    file: str
    dtype: torch.dtype
    sizes: torch.Size


class Object(Struct, frozen=True):
    """An object, which the planner loads from its bytes."""

    range: Range
    nbytes: int
    load: Callable[[io.BytesIO], object]

    def begin(self, room: memoryview) -> Bytes:
        return self.range.read(room)

    def put(self, found: memoryview, slot: Slot) -> Ending | None:
        self.load(io.BytesIO(found))
        return None

    def over(self) -> None:
        pass


class Rows(Struct, frozen=True):
    """Rows of a shard, and the part of a tensor that they are for.

    sizes: of the rows in the store · parts: begin and length of what is wanted in each dimension but the first
    done: called once the rows are there; None but for the last ones of a tensor
    """

    range: Range
    nbytes: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    target: torch.Tensor
    done: Callable[[], object] | None

    def begin(self, room: memoryview) -> Bytes:
        return self.range.read(room)

    def put(self, found: memoryview, slot: Slot) -> Ending | None:
        rows = of_bytes(found, self.dtype, self.sizes)
        for dimension, (begin, length) in enumerate(self.parts, 1):
            rows = rows.narrow(dimension, begin, length)
        return pipeline.copy(self.target, rows, slot)

    def over(self) -> None:
        if self.done:
            self.done()


def an_object(step: Step, file: str, item: ReadItem, planner: LoadPlanner) -> Object:
    whole = Range(step, file, 0, step.size(file))
    return Object(whole, whole.room, partial(planner.load_bytes, item))


def rows_of(
    shard: Shard, item: ReadItem, target: torch.Tensor, done: Callable[[], object], most: int
) -> Iterator[Rows]:
    """Yields the rows of a shard that an item wants, in order.

    Where the item wants whole rows, and its target has no gaps, each element counts as a row. Each piece begins with a
    chunk then, and no chunk is read twice.
    most: bytes of the chunks that are read for a piece, unless one row needs more
    """
    sizes = shard.sizes
    first, count, row_sizes = (item.storage_offsets[0], item.lengths[0], sizes[1:]) if sizes else (0, 1, torch.Size())
    if item.lengths[1:] == row_sizes and target.is_contiguous():
        first, count, row_sizes = first * row_sizes.numel(), target.numel(), torch.Size()
        target = target.view(-1)
    parts = tuple(zip(item.storage_offsets[1:], item.lengths[1:], strict=True))[: len(row_sizes)]
    row = row_sizes.numel() * shard.dtype.itemsize
    for begin, end in _cuts(first, first + count, row, shard.step.chunk_bytes, most):
        there = Range(shard.step, shard.file, begin * row, end * row)
        yield Rows(
            there,
            there.room,
            shard.dtype,
            (end - begin, *row_sizes),
            parts,
            target.narrow(0, begin - first, end - begin),
            done if end == first + count else None,
        )


def _cuts(first: int, end: int, row: int, chunk: int, most: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of rows, once also of none. Their chunks have `most` bytes or fewer."""
    while True:
        limit = first * row // chunk * chunk + most
        until = min(end, max(first + 1, limit // max(1, row)))
        yield first, until
        if until == end:
            return
        first = until
