"""Control state of a process: saved by the driver, and given back."""

from msgspec import Struct

from gcr.control import ControlPhase
from gcr.engine.drive import ControlDrive, drive_of
from gcr.engine.session import Session


class ProcessControl(Struct, frozen=True):
    session: Session

    @property
    def drive(self) -> ControlDrive:
        return drive_of(self.session.process, self.session.node, lambda: self.session.control, self.session.moves)

    def _drive_undecided(self) -> ControlDrive:
        """Where nothing is written down, there is nothing to note it in."""
        return ControlDrive(self.session.pid, lambda: self.session.control, self.session.process.placement)

    def freeze(self, deadline: float) -> None:
        session = self.session
        session.process.agent.freeze(session.transaction)
        session.control.lock(session.pid, deadline)
        session.control.checkpoint(session.pid, deadline)

    def freeze_again(self, deadline: float) -> None:
        """Take a half-done thaw back, wherever it stopped."""
        if not self.session.process.agent.frozen():
            self.session.process.agent.freeze(self.session.transaction)
        self.drive.await_answer()
        self.drive.to(ControlPhase.CHECKPOINTED, deadline)

    def thaw(self, deadline: float, undo: bool = False) -> None:
        """Bring the control state back; `undo`: from a freeze that was not decided. Raises Lost, DeviceShared."""
        session = self.session
        drive = self._drive_undecided() if undo else self.drive
        if undo and session.keeps_context and drive.settled() == ControlPhase.CHECKPOINTED:
            session.control.unlock(session.pid, deadline)  # nothing was given up: it need not be made again
        if not undo or drive.settled() != ControlPhase.ABSENT:  # a driver without the process keeps nothing of it
            drive.to(ControlPhase.RUNNING, deadline)
        if session.process.agent.frozen():
            session.process.agent.thaw(session.transaction)
