"""Trainings with Lightning's Trainer that the tests run on ranks. What they return needs no PyTorch to be read."""

import hashlib
import json
import os
import signal
import time
import warnings
from collections import OrderedDict
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from training_programs import logged

from gcr.errors import GcrError
from gcr.torch.lightning import GcrCheckpointIO

WIDTH, ROWS = 6, 12


SAVED = 6  # the end of an epoch of one rank's rows, for one and for two ranks


def await_saved(last: Path) -> None:
    """Waits until a checkpoint of step SAVED or a later one has its path."""
    while True:
        with suppress(OSError, ValueError):
            if json.loads(last.read_text())["step"] >= SAVED:
                return
        time.sleep(0.01)


class Model(lightning.LightningModule):
    """It is killed at a step, once an end of an epoch is saved: in an epoch Lightning does not know its place."""

    def __init__(self, last: Path, kill_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.last, self.kill_at, self.began = nn.Linear(WIDTH, WIDTH), last, kill_at, -1

    def on_train_start(self) -> None:
        self.began = self.global_step

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        if self.global_step == self.kill_at:
            await_saved(self.last)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def trainer_of(folder: Path, plugins: Any, steps: int, world: int) -> lightning.Trainer:
    """Returns a Trainer that keeps the two best of every second step, and the last."""
    keeps = ModelCheckpoint(folder, monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=2)
    return lightning.Trainer(
        accelerator="cpu",
        devices=world,
        max_steps=steps,
        plugins=plugins,
        callbacks=[keeps],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy="ddp" if world > 1 else "auto",
    )


def data() -> DataLoader[Any]:
    rows = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(7))
    return DataLoader(rows, batch_size=2)  # type: ignore[arg-type]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def digests(trainer: lightning.Trainer) -> dict[str, Any]:
    """Returns what a training is."""
    (optimizer,) = trainer.optimizers
    found: dict[str, Any] = {"lr": trainer.lr_scheduler_configs[0].scheduler.state_dict(), "at": trainer.global_step}
    for name, parameter in trainer.lightning_module.named_parameters():
        kept = optimizer.state.get(parameter, {})
        found |= {f"{name} {key}": digest(value) for key, value in {"": parameter, **kept}.items()}
    return found


def said_of(value: Any) -> Any:
    """Returns a checkpoint with its types, and digests in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), digest(value)
    if isinstance(value, dict):
        return type(value).__name__, [(key, said_of(each)) for key, each in value.items()]
    return (type(value).__name__, [*map(said_of, value)]) if isinstance(value, list | tuple) else value


# ---- programs: (rank, world, **arguments) -------------------------------------------------------------------------


def trains(
    rank: int, world: int, store: str | None, folder: str, steps: int, kill_at: int | None = None
) -> tuple[int, dict[str, Any], list[str]]:
    """Trains on from the last checkpoint. Returns its step, what the training is, and the files of checkpoints."""
    warnings.simplefilter("ignore")  # of a folder that is not empty, and few workers
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there
    trainer = trainer_of(Path(folder), [] if store is None else [GcrCheckpointIO(store)], steps, world)
    model = Model(Path(folder, "last.ckpt"), kill_at)
    trainer.fit(model, data(), ckpt_path="last")
    return model.began, digests(trainer), sorted(path.name for path in Path(folder).iterdir())


STATE = {
    "global_step": 10,
    "state_dict": OrderedDict({"a.b": torch.arange(6.0).reshape(2, 3).t(), "a": torch.ones(0)}),
    "optimizer_states": [{"state": {0: {"step": torch.tensor(3)}, "0": {"step": torch.tensor(4)}}, "param_groups": ()}],
    "empty": {"list": [], "dict": {}, "none": None, "tuple": (1, ("x", torch.ones(2, dtype=torch.bfloat16).float()))},
    "kinds": [torch.eye(2).to_sparse(), nn.Parameter(torch.ones(2)), torch.ones(1, requires_grad=True)],
}


def keeps(rank: int, world: int, store: str, folder: str) -> dict[str, Any]:
    """Saves, overwrites, removes and loads checkpoints by the methods of CheckpointIO."""
    found: dict[str, Any] = {}
    one, other, plain = (Path(folder) / name for name in ("one.ckpt", "other.ckpt", "plain.ckpt"))
    io = GcrCheckpointIO(store)
    io.save_checkpoint(STATE, one)
    io.save_checkpoint({**STATE, "epoch": 2}, other)  # of the same global_step
    STATE["state_dict"]["a.b"].fill_(-1)
    loaded = io.load_checkpoint(one, weights_only=False)
    STATE["state_dict"]["a.b"].copy_(torch.arange(6.0).reshape(2, 3).t())
    sparse, parameter, wants = loaded.pop("kinds")
    expected = {key: value for key, value in STATE.items() if key != "kinds"}
    found["loaded"] = said_of(loaded) == said_of(expected)
    found["kinds"] = sparse.is_sparse, type(parameter).__name__, wants.requires_grad
    found["steps"] = list(io.files().keeper.steps())
    io.save_checkpoint({"global_step": 3}, one)  # in the place of an earlier one
    io.remove_checkpoint(other)
    io.teardown()
    found["after"] = list(io.files().keeper.steps()), other.exists(), io.load_checkpoint(one)
    TorchCheckpointIO().save_checkpoint({"a": 1}, plain)
    found["plain"] = io.load_checkpoint(plain)
    io.remove_checkpoint(plain)
    found["plain removed"] = not plain.exists()
    found["wrong"] = [
        _error(lambda: GcrCheckpointIO(store, keep_last=2)),
        _error(lambda: GcrCheckpointIO(store, slowdown=0.1)),
        _error(lambda: io.save_checkpoint({}, "s3://b/a")),
    ]
    found["wrong"].append(_error(lambda: GcrCheckpointIO(store, run="another").load_checkpoint(one)))
    with logged() as said:
        io.save_checkpoint({"a": torch.ones(1), "global_step": 50}, other)
        io.files().wait()
        (Path(store) / "packs").rename(Path(store) / "gone")
        (Path(store) / "packs").write_text("no folder")
        io.save_checkpoint({"a": torch.zeros(1)}, plain)
        io.remove_checkpoint(other)
        io.teardown()
    found["stays"] = (
        other.exists(),
        plain.exists(),
        f"{other} stays" in said[-1],
        any("is not saved" in each for each in said),
    )
    return found


def _error(call: Any) -> str | None:
    try:
        call()
    except GcrError as error:
        return error.code
    return None


def interface(rank: int, world: int) -> Any:
    """Returns the methods of CheckpointIO, and whether each package takes its own plugin."""
    import pytorch_lightning

    from gcr.torch.pytorch_lightning import GcrCheckpointIO as Other

    names = ("save_checkpoint", "load_checkpoint", "remove_checkpoint", "teardown")
    methods = {name: [*signature(getattr(CheckpointIO, name)).parameters] for name in names}
    ours = {name: [*signature(getattr(GcrCheckpointIO, name)).parameters] for name in names}
    taken = []
    for package, plugin in ((lightning, GcrCheckpointIO), (pytorch_lightning, Other)):
        made = plugin("/nowhere")
        trainer = package.Trainer(plugins=[made], accelerator="cpu", logger=False, enable_progress_bar=False)
        taken.append(trainer.strategy.checkpoint_io is made)
    return methods, ours, taken
