"""The backend: each worker of vLLM is asked, and one worker of each machine has the whole job suspended or restored.

Graphs, compiled kernels, communicators and the contents of all memory are as before, whichever level is asked for.
vLLM asks a sleeping worker how much memory is free, and gcr's shim answers.
"""

from collections.abc import Callable
from typing import Any

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

from gcr.checkpoints.aside import under_gcr
from gcr.errors import GcrError
from gcr.library.ownjob import restore_own, suspend_own


class GcrBackend(SleepModeBackend):
    """Implements vLLM's interface as of 0.33."""

    def suspend(self, level: int = 1) -> None:
        """Suspends the job. Raises RuntimeError on each rank where it failed on any; then all of them run on."""
        _together(suspend_own, undo=restore_own)
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Brings all of the job back, whatever tags are asked for first. Raises RuntimeError as `suspend` does."""
        self._state = "RESUMING"
        _together(restore_own)
        self._state = "RUNNING"

    @classmethod
    def is_supported(cls) -> bool:
        """Tells whether vLLM was started by `gcr run`."""
        return under_gcr()

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return True


def _together(act: Callable[[], object], undo: Callable[[], object] | None = None) -> None:
    """Acts on one rank of each machine, once all ranks have come so far; all ranks hear of every failure."""
    from vllm.distributed.parallel_state import get_dp_group, get_world_group

    world = get_world_group()
    if get_dp_group().world_size > 1:
        raise RuntimeError("gcr: engines in data parallel sleep at different times, and would be one job")
    leads = world.local_rank == 0
    _told(world, "")  # from here on no rank makes a call of the driver until all of them are told
    failure = _failure_of(act) if leads else ""
    failures = [each for each in _told(world, failure) if each]
    if not failures:
        return
    if undo and leads and not failure:
        failures += filter(None, [_failure_of(undo)])
    raise RuntimeError(f"gcr: {'; '.join(failures)}")


def _failure_of(act: Callable[[], object]) -> str:
    try:
        act()
    except GcrError as error:
        return f"{error.code}: {error}"
    except Exception as error:  # the other ranks wait for the word of this one
        return repr(error)
    return ""


def _told(world: Any, word: str) -> list[str]:
    """Returns the words of all ranks. Goes by the host's memory or network alone."""
    if world.world_size == 1:
        return [word]
    import torch

    words: list[Any] = [None] * world.world_size
    torch.distributed.all_gather_object(words, word, group=world.cpu_group)
    return words
