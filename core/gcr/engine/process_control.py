"""Control state of a process: saved by the driver, and given back."""

from msgspec import Struct

from gcr.control import ControlPhase
from gcr.engine.control_phases import ControlPhases, recorded_phases
from gcr.engine.session import Session
from gcr.errors import DriverError


class ProcessControl(Struct):
    """The control state of one process. `lock_answered`: the driver has said what came of its lock."""

    session: Session
    lock_answered: bool = False

    @property
    def phases(self) -> ControlPhases:
        return recorded_phases(
            self.session.process, self.session.node, lambda: self.session.control, self.session.moves
        )

    def _unrecorded_phases(self) -> ControlPhases:
        """Returns phases that note nothing: before the decision there is no record to note it in."""
        return ControlPhases(self.session.pid, lambda: self.session.control, self.session.process.suspension.placement)

    def lock(self, deadline: float) -> None:
        """Makes every driver call of the process wait: in its shim, then in the driver."""
        session = self.session
        session.process.agent.freeze(session.transaction)
        try:
            session.control.lock(session.pid, deadline)
            self.lock_answered = True
        except DriverError:
            self.lock_answered = True
            raise

    def save(self, deadline: float) -> None:
        """Takes the control state of a locked process off its devices."""
        self.session.process.suspension.was_saved = True  # also where an undo gives it back
        self.session.control.checkpoint(self.session.pid, deadline)

    def is_saved(self) -> bool:
        """Tells whether the driver has the control state, and needs room on the devices to give it back."""
        return self._unrecorded_phases().settled() == ControlPhase.CHECKPOINTED

    def freeze_again(self, deadline: float) -> None:
        """Undoes a half-done thaw, wherever it stopped."""
        if not self.session.process.agent.frozen():
            self.session.process.agent.freeze(self.session.transaction)
        self.phases.await_answer()
        self.phases.to(ControlPhase.CHECKPOINTED, deadline)

    def thaw(self, deadline: float, undo: bool = False) -> None:
        """Restores the control state. `undo`: from a lock or a save before the decision. Raises Lost, DeviceShared."""
        session = self.session
        phases = self._unrecorded_phases() if undo else self.phases
        if undo and not self.lock_answered and not session.keeps_context and session.process.agent.frozen():
            phases.overtake_lock()  # an agent makes one call at a time: its own lock is over
        if undo and session.keeps_context and phases.settled() == ControlPhase.CHECKPOINTED:
            session.control.unlock(session.pid, deadline)  # the context is still there and need not be made again
        if not undo or phases.settled() != ControlPhase.ABSENT:  # an absent process has nothing in the driver
            phases.to(ControlPhase.RUNNING, deadline)
        if session.process.agent.frozen():
            session.process.agent.thaw(session.transaction)
