"""The hooks: the server's HTTP process suspends the whole job on a release, and restores it on a resume.

Between the two every driver call of a scheduler waits. A scheduler that waits there reads no request, and one with a
batch is ended by SGLang's watchdog. So the schedulers are paused before by SGLang's own pause, in which their loop only
reads requests; and nothing that brings the job back depends on a scheduler. The HTTP process itself needs no device.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gcr.errors import GcrError, UnsupportedState, WrongState
from gcr.library.ownjob import restore_own, suspend_own

log = logging.getLogger("gcr.sglang")

Original = Callable[..., Awaitable[Any]]

TAGS = frozenset({"kv_cache", "weights", "cuda_graph"})  # GPU_MEMORY_ALL_TYPES of SGLang


class Release:
    """Hooks around methods of SGLang's TokenizerManager, as of 0.5.23. A process has one manager."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._is_released = False  # by gcr
        self._suspending: asyncio.Task[None] | None = None
        self._continues = True  # after the resume: not if the user had paused the server
        self._apart: set[str] = set()  # tags that SGLang has released itself

    def hooks(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Returns the hooks by the names of the methods that they are around."""
        return {
            "release_memory_occupation": self.release,
            "resume_memory_occupation": self.resume,
            "pause_generation": self.pause,
            "continue_generation": self.go_on,
        }

    async def release(self, original: Original, manager: Any, obj: Any, request: Any = None) -> None:
        """Suspends the job if all memory is to be released; otherwise SGLang releases what it is asked for.

        Raises GcrError; then the server runs on.
        """
        async with self._turn:
            if self._is_released:
                return
            if self._apart or _tags(obj) < TAGS:
                await original(manager, obj, request)
                self._apart |= _tags(obj)
                return
            _refuse_unsupported(manager.server_args)
            self._continues = not manager.is_pause
            try:
                await _pause(manager)
                await self._suspend(manager)
            except BaseException as error:
                log.warning("the memory is not released: %s", _told(error))
                if self._continues and not self._is_released:
                    await _continue(manager)
                raise
            log.info("the job is suspended, its memory is released")

    async def _suspend(self, manager: Any) -> None:
        """Raises GcrError."""
        flushed = await manager.flush_cache()
        if not flushed.success:
            raise WrongState(
                f"SGLang did not flush its cache: {flushed.message or 'it is busy'}",
                state="running",
                hint="release when no request is under way",
            )
        self._is_released = True  # also if this call is cancelled: gcr then goes on
        self._suspending = asyncio.create_task(asyncio.to_thread(suspend_own))
        try:
            await asyncio.shield(self._suspending)
        except Exception:
            self._is_released = False
            raise

    async def resume(self, original: Original, manager: Any, obj: Any, request: Any = None) -> None:
        """Restores all of the job, whatever tags are asked for first. A later resume of other tags does nothing.

        Raises GcrError; then the job stays suspended, and may be resumed again.
        """
        async with self._turn:
            if self._is_released:
                try:
                    await self._suspended()
                    await asyncio.to_thread(restore_own)
                except Exception as error:
                    log.warning("the memory does not come back yet: %s", _told(error))
                    raise
                self._is_released = False
                log.info("the job is restored, its memory is back")
                if self._continues:
                    await _continue(manager)
            elif self._apart:
                await original(manager, obj, request)
                self._apart -= _tags(obj)

    async def _suspended(self) -> None:
        """Waits for a release that was cancelled: to a job that runs still, a restore has nothing to do."""
        if self._suspending and not self._suspending.done():
            await asyncio.wait([self._suspending])

    async def pause(self, original: Original, manager: Any, obj: Any) -> Any:
        """Pauses as SGLang does. A server that is paused while it is released stays paused after the resume."""
        if self._is_released:
            self._continues = False
        return await original(manager, obj)

    async def go_on(self, original: Original, manager: Any, obj: Any) -> Any:
        """Raises WrongState while the memory is released: a request would wait in the driver, and SGLang end itself."""
        if self._is_released:
            raise WrongState(
                "the memory of this server is released", state="suspended", hint="resume_memory_occupation first"
            )
        return await original(manager, obj)


def _tags(obj: Any) -> frozenset[str]:
    return frozenset(obj.tags or TAGS)


def _refuse_unsupported(server_args: Any) -> None:
    """Raises UnsupportedState if a scheduler may be in another job, or does not stop for a pause."""
    reasons = {
        "its schedulers are on several machines": server_args.nnodes > 1,
        "its schedulers are Ray's actors": server_args.use_ray,
        "it has several tokenizer workers": server_args.tokenizer_worker_num > 1,
        "its pipeline stages do not stop for a pause": server_args.pp_size > 1,
    }
    for reason in (reason for reason, is_so in reasons.items() if is_so):
        raise UnsupportedState(f"gcr does not release this server: {reason}", state="running")


async def _pause(manager: Any) -> None:
    """Has requests wait, running ones too; the cache of those is computed again after the pause."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    await manager.pause_generation(PauseGenerationReqInput(mode="retract"))


async def _continue(manager: Any) -> None:
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    await manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))


def _told(error: BaseException) -> str:
    return f"{error.code}: {error}" if isinstance(error, GcrError) else repr(error)
