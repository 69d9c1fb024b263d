"""The methods of Lightning's CheckpointIO upon a store, for both packages that Lightning has.

Lightning knows a checkpoint by the path of a file. So at that path is a small file that names a step of the run:

    {"gcr": 1, "run": "train", "step": 1000, "created": 1764200000.5}

It is written, as a whole, when the step is saved, and by one thread that does all in order. So a path that is there
can be loaded, and a checkpoint that Lightning removes goes when all that it has saved before is safe.
"""

import json
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gcr.errors import GcrError, UsageError
from gcr.imageerrors import NoSuchImage, NotSaved, WrongImage
from gcr_torch.apart import apart, together
from gcr_torch.checkpointer import Checkpointer, Save

log = logging.getLogger("gcr.torch")

FORMAT = 1
MOST = 4096  # bytes of a file that may be one of these


class Files:
    """Checkpoints of one process at paths of its file system, in the run of a Checkpointer that is its own."""

    def __init__(self, keeper: Checkpointer) -> None:
        self.keeper = keeper
        self._thread = ThreadPoolExecutor(1, "gcr-files")
        self._number = 0  # of the last step
        self._failed: NotSaved | None = None  # the last save, since which nothing is removed

    def save(self, state: dict[str, Any], path: Path) -> Save:
        """Saves as `Checkpointer.save`. The number of the step is the state's, or the next one that is free."""
        tensors, rest = apart(state)
        self._number = max(int(state.get("global_step", 0)), self._newest() + 1, self._number + 1)
        save = self.keeper.save(self._number, {"tensors": tensors, "rest": rest})
        self._thread.submit(self._name, save, path)
        return save

    def _newest(self) -> int:
        try:
            return self.keeper.latest() or 0
        except (GcrError, OSError):  # the save meets it as well, and says so
            return 0

    def _name(self, save: Save, path: Path) -> None:
        """Names a step at a path, once it is saved; the step that was named there goes."""
        try:
            save.durable.result()
            run = self.keeper.run
            former = self._still_named(path)
            created = run.manifest(save.step).created
            body = {"gcr": FORMAT, "run": run.name, "step": save.step, "created": created}
            _write(path, json.dumps(body).encode())
            self._failed = None
            if former is not None:
                run.remove([former])
        except NotSaved as error:
            self._failed = error
        except (GcrError, OSError) as error:
            self._failed = NotSaved(f"step {save.step} is saved, and {path} does not say so: {error}")
            log.warning("%s", self._failed)

    def load(self, path: Path, map_location: Any, weights_only: bool | None) -> Any:
        """Raises NoSuchImage, WrongImage, and as `Checkpointer.load_all`."""
        self.wait()
        step = self._named(path)
        if step is None:
            raise NoSuchImage(f"{path} names no step of the run {self.keeper.run.name}")
        found = self.keeper.load_all(step)
        tensors = found.get("tensors", {})
        return together(tensors, found["rest"], map_location, weights_only)

    def remove(self, path: Path) -> Future[None]:
        """Removes a checkpoint when all saves before are over; keeps it if the last of them has failed."""
        return self._thread.submit(self._remove, path)

    def _remove(self, path: Path) -> None:
        if self._failed:
            log.warning("%s stays: a save that was to take its place has failed", path)
            return
        try:
            step = self._still_named(path)
            path.unlink(missing_ok=True)
            if step is not None:
                self.keeper.run.remove([step])
        except (GcrError, OSError) as error:
            log.warning("%s is not removed: %s", path, error)

    def has(self, path: Path) -> bool:
        """Returns whether a file is one of these, once all that was begun is over."""
        self.wait()
        return _said(path) is not None

    def _named(self, path: Path) -> int | None:
        """Returns the step that is named at a path, None if there is none. Raises WrongImage."""
        said, run = _said(path), self.keeper.run
        if said is None:
            return None
        if said["gcr"] != FORMAT or said["run"] != run.name:
            raise WrongImage(f"{path} is a checkpoint of the run {said['run']!r}, of format {said['gcr']}")
        if run.manifest(said["step"]).created != said["created"]:
            raise WrongImage(f"{path} is of another step {said['step']}, which is no more")
        return int(said["step"])

    def _still_named(self, path: Path) -> int | None:
        """Returns the step that is named at a path and is there; None where it is another's, or gone."""
        try:
            return self._named(path)
        except (NoSuchImage, WrongImage):
            return None

    def wait(self) -> None:
        """Waits until all that was begun is over."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Waits as `wait`, and ends. Raises NotSaved with on_error="raise"."""
        self._thread.shutdown()
        self.keeper.close()


def _said(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > MOST:
            return None
        said = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return said if isinstance(said, dict) and {"gcr", "run", "step", "created"} <= said.keys() else None


def _write(path: Path, data: bytes) -> None:
    """Puts a file there, durable and as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Plugin:
    """The methods of CheckpointIO. They pass files that gcr did not write to TorchCheckpointIO, the next base class.

    store, settings: as of Checkpointer. Lightning saves in the first process alone, and loads in each.
    """

    def __init__(self, store: str | os.PathLike[str], **settings: Any) -> None:
        """Touches no store yet. Raises UsageError."""
        if settings.keys() & {"keep_last", "keep_every"}:
            raise UsageError("Lightning removes checkpoints itself", hint="ModelCheckpoint(save_top_k=3)")
        if "slowdown" in settings:
            raise UsageError("Lightning says when to save", hint="ModelCheckpoint(every_n_train_steps=100)")
        self._make = lambda: Files(Checkpointer(store, alone=True, **settings))
        self._files: Files | None = self._make()

    def files(self) -> Files:
        """Returns those of this fit; `teardown` ends them, and Lightning may fit again."""
        if self._files is None:
            self._files = self._make()
        return self._files

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Copies the state aside and returns; it is written meanwhile. Raises NotSaved with on_error="raise"."""
        if storage_options is not None:
            raise TypeError("gcr takes no storage_options")
        self.files().save(checkpoint, _local(path))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Loads the step that is named at the path, or a file of `torch.save`. Raises as `Files.load`."""
        if "://" in str(path) or not self.files().has(_local(path)):
            found: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)  # type: ignore[misc]
            return found
        loaded: dict[str, Any] = self.files().load(_local(path), map_location, weights_only)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        """Removes the step that is named at the path after all saves before, or at once a file of `torch.save`."""
        place = _local(path)
        if place.is_dir() or (place.exists() and _said(place) is None):
            super().remove_checkpoint(path)  # type: ignore[misc]
            return
        self.files().remove(place)

    def teardown(self) -> None:
        """Waits for all saves. Raises NotSaved with on_error="raise"."""
        files, self._files = self._files, None
        if files:
            files.close()


def _local(path: Any) -> Path:
    if "://" in str(path):
        raise UsageError(f"{path}: paths of checkpoints are on this machine", hint="the store may be in a bucket")
    return Path(path)
