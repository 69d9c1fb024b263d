"""Control state, driven from phase to phase to where it should be, wherever an earlier attempt stopped."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.control import ControlPhase
from gcr.engine.agent_control import AgentControl
from gcr.engine.node import Node, amend
from gcr.errors import DeadlinePassed, DriverError, GcrError, Lost, MoveRefused, PeerGone
from gcr.job.decisions import ProcessDecision
from gcr.job.moves import Moves
from gcr.job.placement import BACK, Placement
from gcr.job.process import Process
from gcr.peers.control import ControlPeer

log = logging.getLogger("gcr.engine")

Control = ControlPeer | AgentControl
SETTLE = 60.0
LOCK_AGAIN_S = 5.0  # a process that stands locks within milliseconds
UNANSWERED = 10.0  # the driver's restore takes 0.2 to 0.7 s, and 0.02 more for each GiB of pinned host memory


class ControlPhases(Struct, frozen=True):
    """The phases of one process in the driver. Every step asks for `control` anew: a helper that died has a successor.

    onto: the devices to come back on. `note` writes the placement down.
    """

    pid: int
    control: Callable[[], Control]
    placement: Placement = field(default_factory=Placement)
    onto: Moves = field(default_factory=dict)
    note: Callable[[], object] = lambda: None

    def to(self, goal: ControlPhase, deadline: float) -> None:
        """Moves the driver from phase to phase until `goal`. Raises Lost, DriverError at the deadline, DeadlinePassed.

        A driver call outlives its caller. The driver then refuses the next call for a while, and r580 does
        not say so in its phase. So a refused step is tried again until the deadline; a refused move is not, and raises
        MoveRefused.
        """
        end = time.monotonic() + deadline
        while (phase := self.settled()) != goal or (phase in BACK and self.placement.now != self.onto):
            try:
                self._step(phase, goal, max(0.1, end - time.monotonic()))
            except DriverError as error:
                if self.settled() == ControlPhase.FAILED:
                    raise self._lost(error) from error
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def settled(self) -> ControlPhase:
        """Waits for a driver that is between two phases, since its calls outlive their callers. Returns the phase."""
        end = time.monotonic() + SETTLE
        while (phase := self.control().phase(self.pid)) == ControlPhase.BUSY:
            if time.monotonic() > end:
                raise DeadlinePassed(f"the driver is still busy with process {self.pid} after {SETTLE:g} s")
            time.sleep(0.02)
        if phase in BACK and self.placement.tried is not None:
            self._came_to(self.placement.tried)
        return phase

    def overtake_lock(self) -> None:
        """Makes sure that no earlier lock, which was never answered, is taken after its undo, when the program runs.

        A driver call outlives its caller, and the phase need not show it. So the process is locked once more. That lock
        comes behind the earlier one, or takes its place; the undo unlocks either.
        """
        end = time.monotonic() + LOCK_AGAIN_S
        while self.settled() == ControlPhase.RUNNING and (left := end - time.monotonic()) > 0:
            with suppress(DriverError, DeadlinePassed):  # the earlier call is under way: it is tried again
                self.control().lock(self.pid, max(0.1, left))
                return
            time.sleep(0.05)

    def await_answer(self) -> None:
        """Waits for a restore that an earlier helper asked for: r580 does not say whether it goes on."""
        end = self.placement.since + UNANSWERED
        while self.placement.tried is not None and self.settled() == ControlPhase.CHECKPOINTED:
            if time.monotonic() > end:
                return
            time.sleep(0.02)

    def _step(self, phase: ControlPhase, goal: ControlPhase, limit: float) -> None:
        outward = goal == ControlPhase.CHECKPOINTED
        match phase:
            case ControlPhase.RUNNING:  # or it is back, but elsewhere
                self.control().lock(self.pid, limit)
            case ControlPhase.LOCKED if outward or self.placement.now != self.onto:
                self.control().checkpoint(self.pid, limit)
            case ControlPhase.LOCKED:
                self.control().unlock(self.pid, limit)
            case ControlPhase.CHECKPOINTED:
                self._restore(limit)
            case ControlPhase.FAILED:
                raise self._lost("it says so itself")
            case _:
                raise PeerGone(f"the driver does not know process {self.pid}")

    def _restore(self, limit: float) -> None:
        control, before = self.control(), self.placement.tried
        moves = self.placement.now != self.onto
        pairs = self.placement.pairs(self.onto, control.free_bytes()) if moves else {}
        self._announce(moves)
        try:
            control.restore(self.pid, pairs, limit)
        except (PeerGone, DeadlinePassed):
            raise
        except GcrError as error:
            if before is not None:  # the call of a caller that died may still go on, and be why this one is refused
                self.placement.tried = before
            if self.settled() != ControlPhase.CHECKPOINTED:
                raise
            self.placement.tried = before
            self._note_if_possible()
            if not moves or not isinstance(error, DriverError):
                raise
            text = f"the driver does not bring process {self.pid} back on these devices: {error.message}"
            hint = "gcr restore without --device" if before is None else "gcr restore again, in a while"
            raise MoveRefused(text, hint=hint) from error
        if self.placement.tried is not None:
            self._came_to(self.onto)

    def _announce(self, moves: bool) -> None:
        """Writes a restore down before the driver is asked. A move that cannot be written down is not asked for."""
        self.placement.since = time.monotonic()
        if moves:
            self._write(self.placement.now, self.onto, otherwise=self.placement.tried)
            return
        self.placement.tried = self.onto
        self._note_if_possible()

    def _came_to(self, devices: Moves) -> None:
        """Writes down where the process is. Raises where it is elsewhere and that cannot be written down."""
        if devices != self.placement.now:
            self._write(devices, None, otherwise=devices)
            return
        self.placement.tried = None
        self._note_if_possible()

    def _note_if_possible(self) -> None:
        """Writes the placement down. Without it a new daemon would wait for an answer that was given."""
        with suppress(GcrError, OSError):
            self.note()

    def _write(self, now: Moves, tried: Moves | None, otherwise: Moves | None) -> None:
        before = self.placement.now
        self.placement.now, self.placement.tried = now, tried
        try:
            self.note()
        except BaseException:
            self.placement.now, self.placement.tried = before, otherwise
            raise

    def _lost(self, why: object) -> Lost:
        text = f"the driver will not give process {self.pid} back: {why}"
        return Lost(text, state="lost", hint="docs/troubleshooting.md#lost")


def recorded_phases(process: Process, node: Node, control: Callable[[], Control], onto: Moves) -> ControlPhases:
    """Returns phases that note each step in the decision that stands."""
    place, pid = process.suspension.placement, process.identity.pid

    def placed(known: ProcessDecision) -> ProcessDecision:
        return replace(known, now=place.now, tried=place.tried) if known.pid == pid else known

    def note() -> None:
        amend(node.journal, process.job, placed)
        if moved := place.said():
            log.info("job %s: process %d: %s", process.job, pid, moved)

    return ControlPhases(pid, control, place, onto, note)
