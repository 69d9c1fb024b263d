"""Control state, driven from phase to phase to where it should be, wherever an earlier attempt stopped."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gcr.control import ControlPhase
from gcr.daemon.peers import ControlPeer
from gcr.engine.snapshot import AgentControl
from gcr.errors import DeadlinePassed, DriverError, Lost, PeerGone

SETTLE = 60.0


@dataclass(frozen=True, slots=True)
class ControlDrive:
    """Of one process. `control` is asked for at every step: a helper that died has a successor."""

    pid: int
    control: Callable[[], "ControlPeer | AgentControl"]

    def to(self, goal: ControlPhase, deadline: float) -> None:
        """Step the driver from phase to phase until `goal`. Raises Lost, DriverError at the deadline, DeadlinePassed.

        A call whose caller died goes on in the driver, which then refuses the next one for a while, and r580 does not
        say so in its phase: a refused step is tried again until the deadline.
        """
        end = time.monotonic() + deadline
        while (phase := self.settled()) != goal:
            try:
                self._step(phase, goal, max(0.1, end - time.monotonic()))
            except DriverError as error:
                if self.settled() == ControlPhase.FAILED:
                    raise self._lost(error) from error
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def settled(self) -> ControlPhase:
        """The driver's phase once it is not between two. A driver call goes on though its caller died."""
        end = time.monotonic() + SETTLE
        while (phase := self.control().phase(self.pid)) == ControlPhase.BUSY:
            if time.monotonic() > end:
                raise DeadlinePassed(f"the driver is still busy with process {self.pid} after {SETTLE:g} s")
            time.sleep(0.02)
        return phase

    def _step(self, phase: ControlPhase, goal: ControlPhase, limit: float) -> None:
        outward = goal == ControlPhase.CHECKPOINTED
        match phase:
            case ControlPhase.RUNNING:
                self.control().lock(self.pid, limit)
            case ControlPhase.LOCKED if outward:
                self.control().checkpoint(self.pid, limit)
            case ControlPhase.LOCKED:
                self.control().unlock(self.pid, limit)
            case ControlPhase.CHECKPOINTED:
                self.control().restore(self.pid, {}, limit)
            case ControlPhase.FAILED:
                raise self._lost("it says so itself")
            case _:
                raise PeerGone(f"the driver does not know process {self.pid}")

    def _lost(self, why: object) -> Lost:
        text = f"the driver will not give process {self.pid} back: {why}"
        return Lost(text, state="lost", hint="docs/troubleshooting.md#lost")
