"""Trainings with Transformers' Trainer that the tests run on ranks. What they return needs no PyTorch to be read."""

import hashlib
import os
import signal
import tempfile
from dataclasses import fields
from inspect import signature
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.utils.data import Dataset
from training_programs import logged
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback, TrainerState

from gcr.errors import GcrError
from gcr.torch.transformers import GcrCallback, resume

EXAMPLES, WORDS, LENGTH = 20, 31, 8


class Texts(Dataset[Any]):
    """Notes which examples are asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.asked.append(number)
        words = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": words, "labels": words}


class Seen(TrainerCallback):
    """Notes the losses and evaluations by step, and ends the training, or this process, behind a step."""

    def __init__(self, stop_at: int | None, kill_at: int | None) -> None:
        self.stop_at, self.kill_at = stop_at, kill_at
        self.said: dict[str, Any] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for key in {"loss", "eval_loss", "learning_rate"} & logs.keys():
            self.said[f"{state.global_step} {key}"] = logs[key]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        control.should_training_stop |= state.global_step == self.stop_at


def trainer_of(folder: str, seen: Seen, callback: Any, accumulate: int = 1, **arguments: Any) -> Trainer:
    """Returns a Trainer of a tiny model, with dropout, so that the order of random numbers shows."""
    torch.manual_seed(1)
    size = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    settings = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulate,
        learning_rate=0.01,
        warmup_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        ddp_find_unused_parameters=False,
        **arguments,
    )
    few = torch.utils.data.Subset(Texts(), range(3))
    callbacks = [*callback, seen, *([EarlyStoppingCallback(100)] if settings.metric_for_best_model else [])]
    trainer = Trainer(model, settings, train_dataset=Texts(), eval_dataset=few, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    return trainer


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def digests(trainer: Trainer) -> dict[str, Any]:
    """Returns what a training is."""
    optimizer = trainer.optimizer.optimizer
    state = trainer.state
    found: dict[str, Any] = {"scheduler": trainer.lr_scheduler.state_dict()}
    found["trainer"] = state.global_step, state.epoch, state.total_flos, state.best_metric
    found["callbacks"] = [each.state() for each in trainer.callback_handler.callbacks if hasattr(each, "state")]
    for name, parameter in trainer.model.named_parameters():
        kept = optimizer.state.get(parameter, {})
        found |= {f"{name} {key}": digest(value) for key, value in {"": parameter, **kept}.items()}
    found["random"] = digest(torch.random.get_rng_state())
    return found


# ---- programs: (rank, world, **arguments) -------------------------------------------------------------------------


def trains(
    rank: int,
    world: int,
    store: str | None,
    steps: int,
    stop_at: int | None = None,
    kill_at: int | None = None,
    **arguments: Any,
) -> Any:
    """Trains on from where the run stands. Returns the step it began from, what it was given and said, and what it is.

    store: None for a Trainer without gcr
    """
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}  # the group is there
    seen, began = Seen(stop_at, kill_at), 0
    ours = [] if store is None else [GcrCallback(store, every=2, keep_last=3)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(folder, seen, ours, max_steps=steps, **arguments)
        if ours:
            began = ours[0].keeper().latest_of_all() or 0
            resume(trainer)
        else:
            trainer.train()
    return began, trainer.train_dataset.asked, seen.said, digests(trainer)


def answers(rank: int, world: int, store: str) -> Any:
    """Returns the steps of a run whose Trainer is used in other ways than by `resume`, and what gcr says about it."""
    seen = Seen(None, None)
    with tempfile.TemporaryDirectory() as folder, logged() as said:
        ours = GcrCallback(store, run="mine")
        trainer = trainer_of(folder, seen, [ours], max_steps=5, save_steps=3)
        trainer.train()
        trainer.train()
        steps = list(ours.keeper().steps())
        trainer.remove_callback(GcrCallback)
        paced = GcrCallback(store, run="paced", slowdown=0.001)
        trainer_of(folder, seen, [paced], max_steps=10, save_steps=3).train()
        steps += paced.keeper().steps()
        for wrong in (
            lambda: resume(trainer),
            lambda: GcrCallback(store, every=0),
            lambda: GcrCallback(store, every=2, slowdown=0.1),
        ):
            try:
                wrong()
            except GcrError as error:
                said.append(error.message)
        vars(PartialState())["distributed_type"] = DistributedType.FSDP
        try:
            GcrCallback(store).keeper()
        except GcrError as error:
            said.append(error.message)
    return steps, said


def interface(rank: int, world: int) -> Any:
    """Returns what gcr uses of Transformers and Accelerate beyond the events."""
    signatures = {
        name: [*signature(getattr(Trainer, name)).parameters]
        for name in ("train", "_load_from_checkpoint", "_load_rng_state", "store_flos")
    }
    state = [each.name for each in fields(TrainerState)]
    events = [each for each in vars(TrainerCallback) if each.startswith("on_")]
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    Accelerator(cpu=True)
    wrapped = AcceleratedOptimizer(optimizer)
    return TRAINER_STATE_NAME, signatures, state, events, (wrapped.optimizer is optimizer, wrapped.scaler)
