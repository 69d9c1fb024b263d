"""Control state of a process: saved by the driver, and given back."""

from msgspec import Struct

from gcr.control import ControlPhase
from gcr.engine.drive import ControlDrive, drive_of
from gcr.engine.session import Session


class ProcessControl(Struct, frozen=True):
    """The control state of one process."""

    session: Session

    @property
    def drive(self) -> ControlDrive:
        return drive_of(self.session.process, self.session.node, lambda: self.session.control, self.session.moves)

    def _drive_undecided(self) -> ControlDrive:
        """Returns a drive that notes nothing: before the decision there is no record to note it in."""
        return ControlDrive(self.session.pid, lambda: self.session.control, self.session.process.placement)

    def freeze(self, deadline: float) -> None:
        session = self.session
        session.process.agent.freeze(session.transaction)
        session.control.lock(session.pid, deadline)
        session.control.checkpoint(session.pid, deadline)

    def freeze_again(self, deadline: float) -> None:
        """Undoes a half-done thaw, wherever it stopped."""
        if not self.session.process.agent.frozen():
            self.session.process.agent.freeze(self.session.transaction)
        self.drive.await_answer()
        self.drive.to(ControlPhase.CHECKPOINTED, deadline)

    def thaw(self, deadline: float, undo: bool = False) -> None:
        """Restores the control state. `undo`: from a freeze before the decision. Raises Lost, DeviceShared."""
        session = self.session
        drive = self._drive_undecided() if undo else self.drive
        if undo and session.keeps_context and drive.settled() == ControlPhase.CHECKPOINTED:
            session.control.unlock(session.pid, deadline)  # the context is still there and need not be made again
        if not undo or drive.settled() != ControlPhase.ABSENT:  # an absent process has nothing in the driver
            drive.to(ControlPhase.RUNNING, deadline)
        if session.process.agent.frozen():
            session.process.agent.thaw(session.transaction)
