"""All ranks of a training together: what they agree on, and the failure of any of them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from gcr.errors import GcrError

Value = TypeVar("Value")


class Together:
    """The ranks of the default process group, or this process alone.

    They talk through two groups of gcr's own, one for each thread that does so: collectives of a group must come in the
    same order on all ranks, and those of the training may come at any time.
    """

    def __init__(self, timeout_s: float, alone: bool = False) -> None:
        """All ranks come here, unless `alone`. `timeout_s`: longest wait of a rank for the others in one collective."""
        self.rank, self.saving, self._asking = 0, None, None
        if not alone and dist.is_available() and dist.is_initialized():
            self.rank, wait = dist.get_rank(), timedelta(seconds=timeout_s)
            self.saving, self._asking = (dist.new_group(backend="gloo", timeout=wait) for _ in range(2))

    @property
    def is_alone(self) -> bool:
        return self.saving is None

    def agreed(self, answer: Callable[[], Value]) -> Value:
        """Returns the answer of rank 0 on every rank. Raises what rank 0 met, on every rank."""
        if self.is_alone:
            return answer()
        found: list[Any] = [None, None]
        if self.rank == 0:
            try:
                found = [answer(), None]
            except Exception as error:
                found = [None, error]
        dist.broadcast_object_list(found, src=0, group=self._asking)
        if found[1] is not None:
            raise found[1]
        value: Value = found[0]
        return value


class Failing(DefaultSavePlanner):
    """The planner of a rank that cannot take part in a save: it fails the save on all ranks, so that none waits."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise self._error


def cause_of(error: BaseException) -> tuple[int | None, BaseException]:
    """Returns the rank and the error that made a save or load of DCP fail; gcr's errors come first. None: any rank."""
    if not isinstance(error, CheckpointException):
        return None, error
    failures = [(rank, error.failures[rank][0]) for rank in sorted(error.failures)]
    ours = [each for each in failures if isinstance(each[1], GcrError)]
    return (ours or failures)[0]
