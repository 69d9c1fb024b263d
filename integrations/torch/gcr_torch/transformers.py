"""A callback for the Trainer of Transformers that saves into gcr's store, and the way to train on from there.

    trainer = Trainer(..., callbacks=[GcrCallback("/data/run", keep_last=3)])
    resume(trainer)                                     # trainer.train(), from the newest step if there is one

A step has what the Trainer itself keeps: model, optimizer, scheduler, gradient scaler, the state of the Trainer, and of
each rank its generators of random numbers. A save belongs behind the logging and evaluation of its step, for which the
Trainer has no event. So it is made at the next event: before the next step or epoch, or at the end.

The Trainer resumes from a folder. `resume` gives it one with its state and the generators alone; model, optimizer and
scheduler are loaded from the store in place, when the Trainer has made and wrapped them.
"""

import io
import json
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import torch
from accelerate.state import AcceleratorState
from transformers.trainer import TRAINER_STATE_NAME, Trainer
from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import TrainOutput
from transformers.training_args import ParallelMode, TrainingArguments

from gcr.errors import UsageError
from gcr_torch.checkpointer import Checkpointer

log = logging.getLogger("gcr.torch")


class GcrCallback(TrainerCallback):
    """Saves a training of the Trainer every so many steps, and when it ends.

    store, settings: as of Checkpointer; with `slowdown` it saves when one is due · every: None for `save_steps` of the
    TrainingArguments
    """

    def __init__(self, store: str | os.PathLike[str], *, every: int | None = None, **settings: Any) -> None:
        """Touches nothing yet. Raises UsageError, TypeError for a setting that Checkpointer does not have."""
        if every is not None and every < 1:
            raise UsageError("every is 1 or more")
        if every is not None and settings.get("slowdown") is not None:
            raise UsageError("every and slowdown: one of the two says when to save")
        signature(Checkpointer).bind(store, **settings)
        self._store, self._every, self._settings = store, every, settings
        self._keeper: Checkpointer | None = None
        self._resuming: int | None = None  # step from which `resume` begins
        self._saved = 0  # the last step that was saved, or from which this training began
        self._is_due = False
        self._trainer: Trainer | None = None

    def keeper(self) -> Checkpointer:
        """Returns the Checkpointer of this training; all ranks make it together. Raises UsageError."""
        if self._keeper is None:
            kind = AcceleratorState().distributed_type.name
            if kind != "NO" and not kind.startswith("MULTI_"):
                raise UsageError(f"the callback saves no training by {kind}", hint="gcr.torch.dcp does")
            self._keeper = Checkpointer(self._store, **self._settings)
        return self._keeper

    def begin_from(self, step: int, folder: Path, trainer: Trainer) -> None:
        """Writes into the folder what a Trainer is to read there of a step. The next training begins from it.

        Raises as `Checkpointer.load`.
        """
        rank, world = trainer.args.process_index, trainer.args.world_size
        said: dict[str, Any] = {"trainer": ""}
        if rank < self.keeper().run.manifest(step).source.progress["world"]:
            said[f"rng-{rank}"] = b""
        self.keeper().load(step, into=said)
        (folder / TRAINER_STATE_NAME).write_text(said.pop("trainer"), "utf-8")
        for generators in said.values():
            (folder / (f"rng_state_{rank}.pth" if world > 1 else "rng_state.pth")).write_bytes(generators)
        self._resuming = step

    def belongs_to(self, trainer: Trainer) -> None:
        """Saves what only the Trainer knows as well: the states of its other callbacks, and its operations so far."""
        self._trainer = trainer

    # ---- events of the Trainer ----------------------------------------------------------------------------------

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Loads what `resume` left to it. Raises as `Checkpointer.load`, and UsageError."""
        keeper, step = self.keeper(), self._resuming
        self._resuming, self._saved, self._is_due = None, state.global_step, False
        if step is not None:
            keeper.load(step, into=_parts(**has))
        elif state.is_world_process_zero and (newest := keeper.latest()) is not None:
            log.warning("run %s has step %d, and this training does not begin from it", keeper.run.name, newest)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        if self._settings.get("slowdown") is not None:
            self._is_due = self.keeper().due(state.global_step)
        else:
            self._is_due = state.global_step % (self._every or int(state.save_steps)) == 0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        self._save_if_due(args, state, control, **has)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        self._save_if_due(args, state, control, **has)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Saves if there may be no later event with this model: the Trainer may put its best one in its place."""
        self._is_due |= control.should_training_stop
        if control.should_training_stop or args.load_best_model_at_end:
            self._save_if_due(args, state, control, **has)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Saves the end, and waits for all saves. Raises NotSaved with on_error="raise"."""
        self._is_due = not args.load_best_model_at_end
        self._save_if_due(args, state, control, **has)
        keeper, self._keeper = self.keeper(), None
        keeper.close()

    # ---- saving -------------------------------------------------------------------------------------------------

    def _save_if_due(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        if not self._is_due or state.global_step == self._saved:
            return
        self._is_due, self._saved = False, state.global_step
        if self._trainer:
            self._trainer.store_flos()
        generators = _generators(args.parallel_mode == ParallelMode.DISTRIBUTED)
        told = {"trainer": self._described(state, control), f"rng-{args.process_index}": generators}
        self.keeper().save(state.global_step, {**_parts(**has), **told})

    def _described(self, state: TrainerState, control: TrainerControl) -> str:
        """Returns the state of the Trainer as the file in which it keeps it."""
        body, exported = asdict(state), dict[str, Any]()
        others = self._trainer.callback_handler.callbacks if self._trainer else ()
        for each in (*others, control):
            if isinstance(each, ExportableState):
                exported.setdefault(type(each).__name__, []).append(each.state())
        body["stateful_callbacks"] |= {name: of[0] if len(of) == 1 else of for name, of in exported.items()}
        return json.dumps(body, indent=2, sort_keys=True) + "\n"


def resume(trainer: Trainer, **options: Any) -> TrainOutput:
    """Trains from the newest step of the run, or from the beginning if there is none. On every rank.

    options: as of `Trainer.train` · Raises UsageError without a GcrCallback, as `Checkpointer.load`, and as `train`.
    """
    callbacks = trainer.callback_handler.callbacks
    ours = next((each for each in callbacks if isinstance(each, GcrCallback)), None)
    if ours is None:
        raise UsageError("the Trainer has no GcrCallback", hint="Trainer(…, callbacks=[GcrCallback(store)])")
    ours.belongs_to(trainer)
    if (step := ours.keeper().latest_of_all()) is None:
        return trainer.train(**options)
    with TemporaryDirectory(prefix="gcr-resume-") as folder, _without_weights(trainer):
        ours.begin_from(step, Path(folder), trainer)
        return trainer.train(resume_from_checkpoint=folder, **options)


@contextmanager
def _without_weights(trainer: Trainer) -> Iterator[None]:
    """Keeps the Trainer from looking for weights in the folder from which it resumes."""
    hidden = vars(trainer)
    hidden["_load_from_checkpoint"] = lambda *_, **__: None
    try:
        yield
    finally:
        del hidden["_load_from_checkpoint"]


def _parts(*, model: torch.nn.Module, optimizer: Any, lr_scheduler: Any, **_: Any) -> dict[str, Any]:
    """Returns what a save has of the objects that come with an event. Those of Accelerate wrap PyTorch's."""
    scaler = getattr(optimizer, "scaler", None)
    parts = {"model": model, "optimizer": getattr(optimizer, "optimizer", optimizer), "scheduler": lr_scheduler}
    return parts if scaler is None else {**parts, "scaler": scaler}


def _generators(is_distributed: bool) -> bytes:
    """Returns the states of this process's generators of random numbers, as the Trainer reads them from a file."""
    found = {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        cuda = torch.cuda.random
        found["cuda"] = cuda.get_rng_state_all() if is_distributed else cuda.get_rng_state()
    into = io.BytesIO()
    torch.save(found, into)
    return into.getvalue()
