"""Saves the state of a training every so many steps, while the training goes on.

    keeper = Checkpointer("/data/run", keep_last=3, keep_every=1000)
    state = {"model": model, "optimizer": optimizer}
    start = keeper.load_latest(into=state)                  # None on an empty store; else the step
    for step in …:
        …
        keeper.save(step, state)                            # copies the state aside, and returns

With Checkpointer(..., slowdown=0.03) and `if keeper.due(step):` it says itself when a save is due (pacing.py).

Every rank makes the same calls. Saves are written by one thread, in order, with collectives of a process group of its
own. The bytes are hashed and written by a process beside this one (gcr.checkpoints.helper). A step is saved when its
manifest is published (gcr.checkpoints.saving), or not at all.
"""

import logging
import os
import time
from collections.abc import MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Literal, Self, get_args

from msgspec import Struct
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from gcr.checkpoints.compression import Compress, Compression
from gcr.checkpoints.marks import Marks
from gcr.checkpoints.run import checked_step, doomed, run_in
from gcr.checkpoints.saving import locked
from gcr.checkpoints.share import DEFAULT_CHUNK_BYTES, THREADS
from gcr.errors import GcrError, UsageError
from gcr.imageerrors import NotSaved
from gcr_torch import by_dcp
from gcr_torch.aside import AsideStager, Asked, Staged, Way
from gcr_torch.pacing import InFlight, Pacing
from gcr_torch.reader import Reader
from gcr_torch.stager import Stager
from gcr_torch.state import adapted, states_of, take_back
from gcr_torch.together import Failing, Together, cause_of
from gcr_torch.window import Window
from gcr_torch.writers import Writers

log = logging.getLogger("gcr.torch")

TIMEOUT_S = 600.0  # longest wait of a rank for the others in one collective


class Save(Struct, frozen=True):
    """A save that was asked for. `blocked_s`: seconds that the caller waited for `save`.

    safe: done when every tensor of the state may change · durable: done when the step outlives any crash; it has
    NotSaved if it does not become that, also for a save that was skipped
    way: of the tensors on a device, for the reason `why`. Under `gcr run`, by gcr's worker, "copy": within the device;
    "window": read in place, what nothing but an optimizer's step writes, and the rest by copy; "ring": a part of that
    by copy too, as far as the device has room. "staged": to host memory, by this process
    """

    step: int
    blocked_s: float
    safe: Future[None]
    durable: Future[None]
    skipped: bool = False
    way: Way = "staged"
    why: str = ""
    window: Window | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that steps of optimizers have waited for the memory to be read, so far; not in `blocked_s`."""
        return self.window.waited_s if self.window else 0.0


class Checkpointer:
    """Saves and loads the steps of one run. Each rank has one, made, used and closed at the same points.

    store, cache: as of Writer
    keep_last, keep_every: after a save all steps are removed but so many, and multiples; None: none is removed
    on_error: "warn": a save that fails is logged, and `Save.durable` has the error; "raise": the next call raises it
    in_flight: so many saves may be under way, each with a copy of the state in host memory; "auto": as many as pay
    when_full: "wait": a save that finds so many under way waits for one; "skip": it is not made, on any rank
    way: of saves under `gcr run`: "copy": within the device; "ring": so as far as there is room, the rest by window;
    "window": read in place whatever may be; "staged": not by gcr's worker. With "ring" and "window" it is the caller's
    word that nothing but an optimizer's step writes its parameters and its state before `Save.safe`
    alone: this process saves and loads by itself, also where it is one of several ranks
    slowdown: share of the time of steps that may be lost to saves, for `due`
    threads, chunk_bytes: as of Writer
    compress: new chunks, by the save helper: "off", "on", or "auto": where the store is slower than that
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        run: str = "train",
        cache: str | os.PathLike[str] | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        on_error: Literal["warn", "raise"] = "warn",
        in_flight: InFlight = 1,
        when_full: Literal["wait", "skip"] = "wait",
        timeout_s: float = TIMEOUT_S,
        way: Asked = "copy",
        alone: bool = False,
        slowdown: float | None = None,
        threads: int = THREADS,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        compress: Compress = "off",
    ) -> None:
        """Touches no store yet. With torch.distributed it makes two process groups, so all ranks must come here.

        Raises UsageError; LibraryMissing for `compress` without the extra `compression`.
        """
        if on_error not in ("warn", "raise") or when_full not in ("wait", "skip"):
            raise UsageError(f"on_error={on_error!r}, when_full={when_full!r}: warn or raise, wait or skip")
        if way not in get_args(Asked):
            raise UsageError(f"way={way!r}: {', '.join(get_args(Asked))}")
        if (keep_last is not None and keep_last < 1) or (keep_every is not None and keep_every < 1):
            raise UsageError("keep_last and keep_every are 1 or more")
        self.run = run_in(store, run, cache)
        if self.run.url and (keep_last or keep_every):
            raise UsageError("a bucket keeps every step: keep_last and keep_every are for a folder")
        self._keep, self._on_error, self._when_full = (keep_last, keep_every), on_error, when_full
        self._together = Together(timeout_s, alone)
        self._stager = Stager()
        self._pacing = Pacing(slowdown, in_flight, self._together, lambda: self._stager.buffer_bytes)
        self._writers = Writers(self.run, threads, chunk_bytes, self._keep, Compression(compress))
        self._aside = AsideStager(self._stager, way, self.run.name)
        self._thread = ThreadPoolExecutor(1, "gcr-save")
        self._failed: NotSaved | None = None
        self._lock: ExitStack | None = None  # of the run, on rank 0, from the first save on

    # ---- saving -------------------------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """Returns whether to save at this step, on all ranks alike. Every rank calls it once a step, and then saves.

        It measures the time between calls, and what saves cost. Raises UsageError without `slowdown`.
        """
        return self._pacing.due(step)

    def save(self, step: int, state: MutableMapping[str, Any]) -> Save:
        """Copies the state aside and returns; it is written meanwhile. Every rank calls it with the same step.

        Under `gcr run` it waits for the current stream, and for the worker's copy within the device. By window the next
        step of an optimizer waits until its tensors are read; nothing else may write them before `Save.safe` is done.

        Raises NotSaved with on_error="raise", of this save or of an earlier one; else nothing.
        """
        began, marks = time.monotonic(), Marks()
        self._raise_failed()
        if not self._has_room():
            return self._skipped(step, began)
        try:
            staged = self._staged(step, state)
        except BaseException:  # Ctrl-C
            self._pacing.places.release()
            raise
        safe, durable = Future[None](), Future[None]()
        safe.add_done_callback(lambda _: marks.mark("safe"))
        staged.state.add_done_callback(lambda _: marks.mark("drained"))
        staged.safe.add_done_callback(lambda _: safe.set_result(None))
        blocked_s = time.monotonic() - began
        marks.mark("returned")
        self._pacing.began(blocked_s, staged.state)
        save = Save(step, blocked_s, safe, durable, way=staged.way, why=staged.why, window=staged.window)
        if save.window:
            marks.measure("held", lambda: save.waited_s)
        self._thread.submit(self._write, step, staged, durable, marks)
        self._thread.submit(self._remove_old_steps, durable)  # another save may begin meanwhile
        return save

    def _has_room(self) -> bool:
        """Takes a place among the saves under way; returns False for a save that is not to be made, on all ranks."""
        if self._when_full == "wait":
            return self._pacing.places.acquire()
        try:
            goes = self._together.agreed(lambda: self._pacing.places.acquire(blocking=False))
        except RuntimeError as error:  # of a process group: another rank is gone
            log.warning("run %s: the ranks cannot agree on a save: %s", self.run.name, error)
            return False
        return goes and (self._together.rank == 0 or self._pacing.places.acquire())

    def _skipped(self, step: int, began: float) -> Save:
        safe, durable = Future[None](), Future[None]()
        safe.set_result(None)
        durable.set_exception(NotSaved(f"run {self.run.name}: step {step} was skipped: as many saves are under way"))
        return Save(step, time.monotonic() - began, safe, durable, skipped=True)

    def _staged(self, step: int, state: MutableMapping[str, Any]) -> Staged:
        """Returns the copy of the state; a Future with the error for a state that cannot be saved."""
        try:
            checked_step(step)
            self._aside.prepare(step)
            return self._aside.stage(states_of(adapted(state)), state)
        except Exception as error:
            failed = Future[dict[str, Any]]()
            failed.set_exception(error)
            return Staged(failed, "staged", failed, str(error))
        finally:
            self._aside.unprepare()

    def _write(self, step: int, staged: Staged, durable: Future[None], marks: Marks) -> None:
        """Writes a step, on the thread of all saves."""
        try:
            self._save_together(step, staged, marks)
        except BaseException as error:
            failed = self._not_saved(step, error)
            self._failed = self._failed or failed
            durable.set_exception(failed)
        else:
            durable.set_result(None)
        finally:
            self._pacing.ended(durable)

    def _save_together(self, step: int, staged: Staged, marks: Marks) -> None:
        """Takes part in the save also if this rank cannot save: else the others would wait for it."""
        writer = self._writers.writer(staged.regions, marks)
        state: dict[str, Any] = {}
        try:
            state = staged.state.result()
            for each in ("safe", "drained"):  # their callbacks may come later than this
                marks.mark(each)
            writer.reset(str(checked_step(step)))
            self._lock_run()
            planner = DefaultSavePlanner()
        except Exception as error:
            planner = Failing(error)
        try:
            by_dcp.save(state, writer, planner, self._together.saving)
            self._writers.saved()
        finally:
            writer.close()

    def _lock_run(self) -> None:
        """Takes the run's lock on rank 0, once. Raises RunBusy, StoreUnusable …"""
        if self._together.rank == 0 and self._lock is None:
            with ExitStack() as begun:
                begun.enter_context(locked(self.run))
                self._lock = begun.pop_all()

    def _not_saved(self, step: int, error: BaseException) -> NotSaved:
        rank, cause = cause_of(error)
        where = "" if rank is None or self._together.is_alone else f"rank {rank}: "
        failed = NotSaved(f"run {self.run.name}: step {step} is not saved: {where}{cause or type(cause).__name__}")
        failed.hint = cause.hint if isinstance(cause, GcrError) else ""
        failed.__cause__ = cause
        log.warning("%s", failed)
        return failed

    def _remove_old_steps(self, durable: Future[None]) -> None:
        """Removes steps by the rule, after a save that is durable. A disk may take seconds to free large files."""
        if self._together.rank or durable.exception():
            return
        try:
            if going := doomed(self.run.steps(), *self._keep):
                self.run.remove(going)
        except (GcrError, OSError) as error:
            log.warning("run %s: old steps are not removed: %s", self.run.name, error)

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed and self._on_error == "raise":
            raise failed

    # ---- loading ------------------------------------------------------------------------------------------------

    def load_latest(self, into: MutableMapping[str, Any]) -> int | None:
        """Loads the last step into the state, and returns it; returns None if the run has no step. On every rank.

        Raises as `load`.
        """
        self.wait()
        step = self.latest_of_all()
        if step is not None:
            self.load(step, into)
        return step

    def latest_of_all(self) -> int | None:
        """Returns what `latest` returns on rank 0, on every rank. Raises as `latest`."""
        return self._together.agreed(self.run.latest)

    def load(self, step: int, into: MutableMapping[str, Any]) -> None:
        """Loads a step into the state: tensors in place, objects by their `load_state_dict`. On every rank.

        A part of the state may have been loaded when it raises Damaged. Raises NoSuchImage, WrongImage, StoreUnusable,
        WrongKey, UsageError, and PyTorch's errors for a state of other names or shapes.
        """
        self._together.agreed(lambda: self.run.manifest(step).name)
        state = adapted(into)
        reader = Reader(self.run, step=step)
        try:
            by_dcp.load(state, reader, self._together.saving)
        except CheckpointException as error:
            raise cause_of(error)[1] from error
        finally:
            reader.close()
        take_back(state, into)

    def load_all(self, step: int) -> dict[str, Any]:
        """Returns a state of plain values and tensors, in host memory, by this process alone. Raises as `load`."""
        reader = Reader(self.run, step=step)
        try:
            return by_dcp.load_all(reader)
        except CheckpointException as error:
            raise cause_of(error)[1] from error
        finally:
            reader.close()

    # ---- the run ------------------------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """Returns the last step that is saved, None if there is none. Raises StoreUnusable, UnsafeRuntime, WrongKey."""
        return self.run.latest()

    def steps(self) -> Sequence[int]:
        """Returns the steps that are saved, in order. Raises as `latest`."""
        return self.run.steps()

    def verify(self, step: int) -> int:
        """Compares every byte of a step with what was written. Returns the bytes. Raises NoSuchImage, Damaged …"""
        return self.run.verify(step)

    @property
    def compression(self) -> str:
        """Says whether this rank compresses its next save, and by which figures: `on: …`, `off: …`."""
        return self._writers.compression.why

    def wait(self) -> None:
        """Waits until no save is under way. Raises NotSaved with on_error="raise"."""
        self._thread.submit(lambda: None).result()
        self._raise_failed()

    def close(self) -> None:
        """Waits until no save is under way, and lets go of the run and of host memory. Raises as `wait`."""
        self._thread.shutdown()
        self._writers.close()
        self._aside.close()
        self._stager.close()
        if self._lock:
            self._lock.close()
            self._lock = None
        self._raise_failed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
