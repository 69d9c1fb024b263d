"""A StorageWriter of torch.distributed.checkpoint that saves a step of a run into gcr's store.

    dcp.save(state, storage_writer=Writer("/data/run", step=1000))

Each rank writes its tensors into a pack; what the store has already is not written again. The coordinator publishes one
manifest last (gcr.checkpoints.saving). A save that fails, or loses a process, leaves no step.

DCP tells a writer nothing when a save fails. So the locks of a failed save are released when the writer is used again,
closed, or dropped.
"""

import gc
import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from msgspec import Struct
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from gcr.checkpoints.marks import Marks
from gcr.checkpoints.run import Run, checked_step, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.checkpoints.share import DEFAULT_CHUNK_BYTES, THREADS, File, Share
from gcr.errors import UsageError
from gcr.imageerrors import RunBusy
from gcr_torch.held import Held
from gcr_torch.ids import step_of
from gcr_torch.record import PLANNER, is_paths, to_json
from gcr_torch.tensors import host_bytes


class Stored(Struct, frozen=True):
    """The file of an item, and the step. The first item of a rank has the rank's share as well."""

    file: str
    step: int
    share: Share | None


WriteShare = Callable[[Run, int, Iterable[File], int, int], Share]
"""Writes the files of a rank, in chunks of so many bytes, by so many threads, as `write_share` does."""


class Writer(StorageWriter):
    """Saves steps of a run. A step is saved once.

    store: folder of a store, which all ranks share, or URL of a bucket · step: None: each `checkpoint_id` names it
    cache: folder that all ranks share, for a run in a bucket; None: one in the user's data directory
    chunk_bytes: unit in which equal bytes are found, a multiple of 32 KiB; it must not change within a run for that
    threads: of each rank, that name and write chunks
    is_locked: the process of the coordinator holds the lock of the run (gcr.checkpoints.saving.locked)
    write: writes the share of this rank, which is the most of the work
    marks: of the one save that this is for; None: each begins when DCP sets up the writer
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Run,
        *,
        run: str = "train",
        step: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int = THREADS,
        is_locked: bool = False,
        write: WriteShare = write_share,
        marks: Marks | None = None,
    ) -> None:
        """Touches nothing yet. Raises UsageError for a wrong URL, name or step; NoHome."""
        super().__init__()
        self.run = store if isinstance(store, Run) else run_in(store, run, cache)
        self.chunk_bytes, self.threads = chunk_bytes, threads
        self._is_locked, self._write, self._marks = is_locked, write, marks
        self._step = None if step is None else checked_step(step)
        self._world = 1
        self._begun = Held[Saving]()

    @property
    def step(self) -> int:
        """Returns the step that is saved. Raises UsageError if no step was given."""
        if self._step is None:
            raise UsageError("no step was given", hint="Writer(store, step=1000), or checkpoint_id=1000")
        return self._step

    @property
    def checkpoint_id(self) -> str:
        """Returns the folder of the store with the name of the step's image, or of the run where no step was given."""
        return str(self.run.folder / (self.run.name if self._step is None else self.run.image(self._step)))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether a step can be read off it."""
        return step_of(checkpoint_id) is not None

    def close(self) -> None:
        """Releases the locks of a save that failed; does nothing otherwise."""
        self._begun.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _begun=Held[Saving]())

    # ---- called by DCP, in this order ---------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another save. Raises UsageError for a `checkpoint_id` without a step."""
        self._begun.close()
        if checkpoint_id is not None:
            if (found := step_of(checkpoint_id)) is None:
                raise UsageError(f"checkpoint_id {checkpoint_id!r} names no step", hint="such as 1000 or run/step-1000")
            self._step = checked_step(found)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Claims the step, on the coordinator, before any rank writes. Raises RunBusy, StepExists, StoreUnusable …"""
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False makes a checkpoint of each rank, and a step is one of all ranks")
        self._begun.close()
        if is_coordinator:
            saving = self._claimed()
            self._begun.hold(saving, saving.close)

    def _claimed(self) -> Saving:
        try:
            return self._saving()
        except RunBusy:
            gc.collect()  # a writer whose save failed in this process may be garbage that still holds the locks
        return self._saving()

    def _saving(self) -> Saving:
        return Saving(self.run, self.step, self.chunk_bytes, is_locked=self._is_locked, marks=self._marks)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Numbers the ranks: names of files must be the same in each save for a record to be stored once.

        Nothing else may go into a plan: a planner with `enable_plan_caching` keeps plans for later saves.
        """
        self._world = len(plans)
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the items of this rank; they are durable when this returns. Raises NotSaveable, StoreUnusable."""
        files = [f"{plan.storage_data}.{number}" for number in range(len(plan.items))]
        try:
            items = _resolved(plan.items, files, planner)
            share = self._written(self.run, self.step, items, self.chunk_bytes)
        except BaseException:
            self.close()  # DCP fails the save on all ranks
            raise
        results = [
            WriteResult(item.index, written.bytes, Stored(file, self.step, None if number else share))
            for number, (item, file, written) in enumerate(zip(plan.items, files, share.files, strict=True))
        ]
        done = Future[list[WriteResult]]()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publishes the step. Raises UsageError if ranks save different steps, StoreUnusable, Damaged."""
        every = [result for of_rank in results for result in of_rank]
        stored = [cast(Stored, result.storage_data) for result in every]
        if len(steps := {self.step, *(each.step for each in stored)}) > 1:
            raise UsageError(f"run {self.run.name}: ranks save different steps: {', '.join(map(str, sorted(steps)))}")
        files = {_key(result.index): each.file for result, each in zip(every, stored, strict=True)}
        shares = [each.share for each in stored if each.share]
        if not is_paths(metadata.planner_data):
            shares.append(self._pickled(metadata.planner_data))
        framework = Framework("torch", {"torch": str(torch.__version__)})
        self._begun.thing.commit(shares, to_json(metadata, files), self._world, framework, self._written)

    def _pickled(self, planner_data: object) -> Share:
        data = pickle.dumps(planner_data)
        return self._written(self.run, self.step, [(PLANNER, memoryview(data))], self.chunk_bytes)

    def _written(self, run: Run, step: int, files: Iterable[File], chunk_bytes: int) -> Share:
        return self._write(run, step, files, chunk_bytes, self.threads)


def _key(index: MetadataIndex) -> MetadataIndex:
    """Returns the index without its hint, which takes no part in comparisons."""
    return MetadataIndex(index.fqn, index.offset)


def _resolved(items: list[WriteItem], files: list[str], planner: SavePlanner) -> Iterator[File]:
    """Yields each item's file and bytes; a copy of a tensor is made when it is asked for. Raises NotSaveable."""
    for item, file in zip(items, files, strict=True):
        found = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            data = cast(io.BytesIO, found).getbuffer()
        else:
            data = host_bytes(cast(torch.Tensor, found), item.index.fqn)
        yield file, data
