"""Control state of a process: saved by the driver, and given back."""

from msgspec import Struct

from gcr.control import ControlPhase
from gcr.engine.control_phases import ControlPhases, recorded_phases
from gcr.engine.session import Session


class ProcessControl(Struct, frozen=True):
    """The control state of one process."""

    session: Session

    @property
    def phases(self) -> ControlPhases:
        return recorded_phases(
            self.session.process, self.session.node, lambda: self.session.control, self.session.moves
        )

    def _unrecorded_phases(self) -> ControlPhases:
        """Returns phases that note nothing: before the decision there is no record to note it in."""
        return ControlPhases(self.session.pid, lambda: self.session.control, self.session.process.suspension.placement)

    def freeze(self, deadline: float) -> None:
        session = self.session
        session.process.agent.freeze(session.transaction)
        session.control.lock(session.pid, deadline)
        session.control.checkpoint(session.pid, deadline)

    def freeze_again(self, deadline: float) -> None:
        """Undoes a half-done thaw, wherever it stopped."""
        if not self.session.process.agent.frozen():
            self.session.process.agent.freeze(self.session.transaction)
        self.phases.await_answer()
        self.phases.to(ControlPhase.CHECKPOINTED, deadline)

    def thaw(self, deadline: float, undo: bool = False) -> None:
        """Restores the control state. `undo`: from a freeze before the decision. Raises Lost, DeviceShared."""
        session = self.session
        phases = self._unrecorded_phases() if undo else self.phases
        if undo and session.keeps_context and phases.settled() == ControlPhase.CHECKPOINTED:
            session.control.unlock(session.pid, deadline)  # the context is still there and need not be made again
        if not undo or phases.settled() != ControlPhase.ABSENT:  # an absent process has nothing in the driver
            phases.to(ControlPhase.RUNNING, deadline)
        if session.process.agent.frozen():
            session.process.agent.thaw(session.transaction)
