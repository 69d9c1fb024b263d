"""A process leaves its device, and comes back, by the driver's own checkpoint, which carries the data as well."""

import time
from functools import partial

from msgspec import Struct

from gcr import units
from gcr.control import ControlMeans, ControlPhase
from gcr.engine.admit import refuse_as_inspected
from gcr.engine.control_phases import ControlPhases, recorded_phases
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import decide
from gcr.engine.transaction import Transaction
from gcr.errors import DriverError, NoRoom, NotAGpuProcess, UnsupportedState, WrongState
from gcr.job.decisions import DecisionRecord, ProcessDecision
from gcr.job.moves import Moves, moved
from gcr.job.placement import Placement
from gcr.job.states import State
from gcr.memory.hostmemory import available_host_bytes

RESTORE_MARGIN = 64 << 20  # beyond what was in use: the driver rounds up


class Admit(Struct, frozen=True):
    """Refuses what the driver would take and never give back, as far as it can be seen from outside."""

    swap: DriverSwap

    def do(self, undo: Transaction) -> None:
        """Raises NotAGpuProcess, UnsupportedState, WrongState, NoRoom; nothing was touched."""
        swap = self.swap
        control = swap.node.control(swap.world)
        view = control.inspect(swap.pid)
        if view.phase == ControlPhase.ABSENT:
            raise NotAGpuProcess(f"process {swap.pid} does not use a device of {swap.world.backend}")
        if control.means is not ControlMeans.DRIVER:
            text = f"process {swap.pid} was not started by gcr run, and its driver saves no process from outside"
            raise UnsupportedState(text, hint="start it with gcr run")
        if view.phase != ControlPhase.RUNNING:
            raise WrongState(f"process {swap.pid} is {view.phase.value} already", state=view.phase.value)
        refuse_as_inspected(view, heard=False)
        swap.before = dict(view.bytes_by_device)
        missing = sum(swap.before.values()) - available_host_bytes()
        if missing > 0:
            raise NoRoom(f"the host lacks {units.size(missing)} for the driver's copy", missing=missing)


class Record(Struct, frozen=True):
    """Writes the decision before the driver is asked: nothing else leads a new daemon to this process."""

    swap: DriverSwap

    def do(self, undo: Transaction) -> None:
        swap = self.swap
        swap.process.suspension.placement = Placement()
        swap.course.left(swap.node.config.drain_s)
        swap.course.tell("freezing", "the driver carries the data")
        undo.push("record", partial(swap.node.journal.forget, swap.job))
        decide(swap.node.journal, self._decision())

    def _decision(self) -> DecisionRecord:
        swap, identity = self.swap, self.swap.process.identity
        known = ProcessDecision(identity.pid, identity.start_time, swap.before, {}, stack=identity.stack)
        return DecisionRecord(
            swap.job,
            swap.course.transaction,
            "driver",
            time.time(),
            (known,),
            swap.world.backend,
            swap.world.simulated,
            dict(swap.world.environment),
        )


class FreezeWhole(Struct):
    """Has the driver take the process off its device, data and all. `answered`: it has said what came of the lock."""

    swap: DriverSwap
    answered: bool = False

    def do(self, undo: Transaction) -> None:
        swap = self.swap
        control, limit = swap.node.control(swap.world), swap.course.left(swap.node.config.drain_s)
        swap.course.mark("stop")
        undo.push("freeze", self.thaw)
        try:
            control.lock(swap.pid, limit)
            self.answered = True
        except DriverError:
            self.answered = True
            raise
        control.checkpoint(swap.pid, limit)
        swap.process.move(State.FROZEN)
        swap.course.mark("frozen")

    def thaw(self) -> None:
        """Waits until the driver is not between two phases, and takes back what it has done."""
        swap, config = self.swap, self.swap.node.config
        phases = ControlPhases(swap.pid, lambda: swap.node.control(swap.world), swap.process.suspension.placement)
        if not self.answered:
            phases.overtake_lock()
        if phases.settled() != ControlPhase.ABSENT:
            with swap.node.turns.taking(swap.before, config.drain_s):
                phases.to(ControlPhase.RUNNING, config.drain_s)
        swap.process.take_back("freeze")


def suspended(swap: DriverSwap) -> None:
    """Follows the checkpoint: the process is off its device."""
    swap.process.move(State.SUSPENDED)
    swap.process.suspension.bytes_by_device = swap.before
    swap.after = dict(swap.node.control(swap.world).inspect(swap.pid).bytes_by_device)
    swap.course.mark("vram_free")


class ThawWhole(Struct, frozen=True):
    """Has the driver bring the process back, on these devices."""

    swap: DriverSwap
    moves: Moves

    def do(self, undo: Transaction) -> None:
        """Raises Lost, DeviceShared, NoRoom."""
        swap, limit = self.swap, self.swap.node.config.drain_s
        devices = moved(swap.process.suspension.bytes_by_device, self.moves)
        with swap.node.turns.alone(devices, swap.course.left(limit)):
            self._thaw(undo, limit)

    def _thaw(self, undo: Transaction, limit: float) -> None:
        swap, phases = self.swap, self._phases()
        phases.await_answer()
        if phases.settled() != ControlPhase.CHECKPOINTED and swap.process.suspension.placement.now != self.moves:
            phases.to(ControlPhase.CHECKPOINTED, limit)  # its memory elsewhere takes no other program's room then
        if phases.settled() == ControlPhase.CHECKPOINTED:
            self._make_sure_of_room()
        swap.course.reach("yielded")
        swap.process.move(State.RESTORING)
        undo.push("restoring", partial(swap.process.take_back, "restore"))
        phases.to(ControlPhase.RUNNING, limit)

    def _phases(self) -> ControlPhases:
        swap = self.swap
        return recorded_phases(swap.process, swap.node, lambda: swap.node.control(swap.world), self.moves)

    def _make_sure_of_room(self) -> None:
        """Raises NoRoom before it begins: a restore that finds too little memory loses the process for good."""
        swap = self.swap
        free = swap.node.control(swap.world).free_bytes()
        for device, size in moved(swap.process.suspension.bytes_by_device, self.moves).items():
            missing = size + RESTORE_MARGIN - free.get(device, 0)
            if missing > 0:
                text = f"device {device} lacks {units.size(missing)}"
                raise NoRoom(text, missing=missing, device=device, state=swap.process.state)


def running(swap: DriverSwap) -> None:
    """Follows the restore: the process runs, and nothing is decided on it."""
    swap.process.move(State.RUNNING)
    swap.course.mark("running")
    swap.node.journal.forget(swap.job)
