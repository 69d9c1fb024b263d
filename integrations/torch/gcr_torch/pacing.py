"""Paces a Checkpointer: says when a save is due, and how many may be under way (gcr.checkpoints.pacing)."""

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

from gcr.checkpoints.pacing import Pacer, Places, Turn
from gcr.checkpoints.tuning import fitting
from gcr.errors import UsageError
from gcr_torch.stager import State
from gcr_torch.tensors import plain
from gcr_torch.together import Together

log = logging.getLogger("gcr.torch")

InFlight = int | Literal["auto"]


class Pacing:
    """The places of saves under way, and where a slowdown was given, the answer to whether a save is due.

    held: returns the bytes of host memory that copies of the state have already
    """

    def __init__(self, slowdown: float | None, flying: InFlight, together: Together, held: Callable[[], int]) -> None:
        """Raises UsageError."""
        is_auto = flying == "auto"
        if slowdown is not None and not 0 < slowdown < 1:
            raise UsageError(f"slowdown={slowdown!r}: a share of the time of steps, such as 0.03")
        if is_auto and slowdown is None:
            raise UsageError('in_flight="auto" goes with slowdown')
        if not is_auto and (not isinstance(flying, int) or flying < 1):
            raise UsageError(f'in_flight={flying!r}: 1 or more, or "auto"')
        self.places = Places(flying if isinstance(flying, int) else 1)
        self._together, self._held, self._state_bytes = together, held, 0
        self._under_way = deque[Callable[[bool], None]]()
        room = self._fitting if is_auto else None
        self._pacer = None if slowdown is None else Pacer(slowdown, self.places, self._agreed, room)

    def due(self, step: int) -> bool:
        """Returns whether to save at this step. Raises UsageError without a slowdown."""
        if self._pacer is None:
            raise UsageError("due: no slowdown was given", hint='Checkpointer("/data/run", slowdown=0.03)')
        return self._pacer.due(step)

    def began(self, blocked_s: float, staged: Future[State]) -> None:
        """Notes a save that has a place, and blocked the training."""
        if self._pacer:
            staged.add_done_callback(self._note_bytes)
            self._under_way.append(self._pacer.began(blocked_s))

    def ended(self, durable: Future[None]) -> None:
        """Notes the end of the first save that is under way, and frees its place."""
        if self._pacer:
            self._under_way.popleft()(durable.exception() is None)
        self.places.release()

    def _agreed(self, decide: Callable[[], Turn]) -> Turn:
        try:
            return self._together.agreed(decide)
        except RuntimeError as error:  # of a process group: another rank is gone
            log.warning("the ranks cannot agree on whether a save is due: %s", error)
            return Turn(False, 1, self.places.most)

    def _note_bytes(self, staged: Future[State]) -> None:
        if not staged.exception():
            self._state_bytes = nbytes(staged.result())

    def _fitting(self) -> int:
        """Returns how many copies of the state each rank of this machine may have."""
        return fitting(self._state_bytes, self._held(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def nbytes(state: Any) -> int:
    """Returns the bytes of all tensors of a state, each object once."""
    return sum({id(each): each.numel() * each.element_size() for each in plain(state)}.values())
