"""Placement: where the driver has a suspended process's control state. A restore onto other devices may fail midway.

    control state comes back on other devices ─▶ something else fails ─▶ it is frozen again, but there

From then on the driver knows it by the devices where it was last, and the checkpoint by those that it left. Where a
restore leads is written down before the driver hears of it. The driver's phase tells whether it came to that: a process
that is back is where the restore led. So this, too, is written down before any process is frozen again.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from gcr.control import ControlPhase
from gcr.job.moves import Moves

BACK = frozenset({ControlPhase.LOCKED, ControlPhase.RUNNING})


@dataclass(slots=True)
class Placement:
    """The placement of one process. Both fields count from the devices of its checkpoint.

    tried: a restore without an answer yet · since: when this daemon began that, or heard of it; time.monotonic()
    """

    now: Moves = field(default_factory=dict)
    tried: Moves | None = None
    since: float = field(default_factory=time.monotonic, compare=False)

    def said(self) -> str:
        """Returns in words what is on other devices, or on its way there; nothing where all is on its own devices."""
        now = [f"its control state is on {_in_words(self.now)}"] if self.now else []
        onto = self.tried is not None and (self.tried or self.now)
        to = [f"a restore is to bring it to {_in_words(self.tried or {})}"] if onto else []
        return "; ".join(now + to)

    def pairs(self, to: Moves, devices: Iterable[str]) -> dict[str, str]:
        """A move in the driver's words: each of all `devices` of this machine once.

        On another machine than that of the checkpoint `to` names each of that one's.
        """
        here = {*devices}
        every = here if here.issuperset(to) else to
        pairs = {self.now.get(each, each): to.get(each, each) for each in every}
        idle = {each: each for each in here - pairs.keys()} if here.issuperset(pairs) else {}
        return pairs | idle


def _in_words(moves: Moves) -> str:
    return ", ".join(f"{new} instead of {old}" for old, new in sorted(moves.items())) or "the devices of its checkpoint"
