"""Strategy `driver`: a process gcr did not start. The driver carries its data itself; slow, but it needs no shim.

What the driver would take and never give back is refused from outside, as far as it can be seen there.
"""

import time
from functools import partial

from msgspec import Struct, field

from gcr import units
from gcr.control import ControlMeans, ControlPhase
from gcr.engine.control_phases import ControlPhases, recorded_phases
from gcr.engine.node import Course, Node, World, decide
from gcr.engine.transaction import Transaction
from gcr.errors import Lost, NoRoom, NotAGpuProcess, UnsupportedState, WrongState
from gcr.job.journal import DecisionRecord, ProcessDecision
from gcr.job.moves import Moves, moved
from gcr.job.placement import Placement
from gcr.job.process import Process
from gcr.job.states import State
from gcr.memory.hostmemory import available_host_bytes

RESTORE_MARGIN = 64 << 20  # beyond what was in use: the driver rounds up


class DriverSwap(Struct):
    process: Process
    node: Node
    world: World
    course: Course
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    def checkpoint(self) -> None:
        self._admit()
        self.process.placement = Placement()
        control, limit = self.node.control(self.world), self.course.left(self.node.config.drain_s)
        with Transaction(self.process.job) as undo:
            self.course.tell("freezing", message="the driver carries the data")
            undo.push("record", partial(self.node.journal.forget, self.process.job))
            decide(self.node.journal, self._decision())  # first: nothing else leads a successor to this process
            self.course.mark("stop")
            undo.push("freeze", self._thaw)
            control.lock(self.pid, limit)
            control.checkpoint(self.pid, limit)
            self.process.move(State.FROZEN)
            self.course.mark("frozen")
            undo.commit()
        self.process.move(State.SUSPENDED)
        self.process.bytes_by_device = self.before
        self.after = dict(control.inspect(self.pid).bytes_by_device)
        self.course.mark("vram_free")

    def restore(self, moves: Moves) -> None:
        phases = recorded_phases(self.process, self.node, lambda: self.node.control(self.world), moves)
        try:
            self._restore(phases, moves)
        except Lost:
            self.process.settle(State.LOST)
            raise
        self.process.move(State.RUNNING)
        self.course.mark("running")
        self.node.journal.forget(self.process.job)

    def _restore(self, phases: ControlPhases, moves: Moves) -> None:
        limit = self.node.config.drain_s
        phases.await_answer()
        if phases.settled() != ControlPhase.CHECKPOINTED and self.process.placement.now != moves:
            phases.to(ControlPhase.CHECKPOINTED, limit)  # what it has elsewhere is in nobody's way then
        if phases.settled() == ControlPhase.CHECKPOINTED:
            self._make_sure_of_room(moves)
        self.process.move(State.RESTORING)
        try:
            phases.to(ControlPhase.RUNNING, limit)
        except BaseException:
            self.process.take_back("restore")
            raise

    def _admit(self) -> None:
        control = self.node.control(self.world)
        view = control.inspect(self.pid)
        if view.phase == ControlPhase.ABSENT:
            raise NotAGpuProcess(f"process {self.pid} does not use a device of {self.world.backend}")
        if control.means is not ControlMeans.DRIVER:
            text = f"process {self.pid} was not started by gcr run, and its driver saves no process from outside"
            raise UnsupportedState(text, hint="start it with gcr run")
        if view.phase != ControlPhase.RUNNING:
            raise WrongState(f"process {self.pid} is {view.phase.value} already", state=view.phase.value)
        if view.refusals:
            first = view.refusals[0]
            raise UnsupportedState(f"process {self.pid}: {first.detail}", hint=f"docs/limitations.md#{first.reason}")
        self.before = dict(view.bytes_by_device)
        missing = sum(self.before.values()) - available_host_bytes()
        if missing > 0:
            raise NoRoom(f"the host lacks {units.size(missing)} for the driver's copy", missing=missing)

    def _make_sure_of_room(self, moves: Moves) -> None:
        """A restore that finds too little memory is for good: so it is not begun."""
        free = self.node.control(self.world).free_bytes()
        for device, size in moved(self.process.bytes_by_device, moves).items():
            missing = size + RESTORE_MARGIN - free.get(device, 0)
            if missing > 0:
                text = f"device {device} lacks {units.size(missing)}"
                raise NoRoom(text, missing=missing, device=device, state=self.process.state)

    def _thaw(self) -> None:
        control = self.node.control(self.world)
        end = time.monotonic() + self.node.config.control_s
        while (phase := control.phase(self.pid)) == ControlPhase.BUSY and time.monotonic() < end:
            time.sleep(0.02)
        if phase == ControlPhase.CHECKPOINTED:
            control.restore(self.pid, {}, self.node.config.drain_s)
        if phase in (ControlPhase.CHECKPOINTED, ControlPhase.LOCKED):
            control.unlock(self.pid, self.node.config.control_s)
        self.process.take_back("freeze")

    def _decision(self) -> DecisionRecord:
        identity = self.process.identity
        known = ProcessDecision(identity.pid, identity.start_time, self.before, {}, stack=identity.stack)
        return DecisionRecord(
            self.process.job,
            self.course.transaction,
            "driver",
            time.time(),
            (known,),
            self.world.backend,
            self.world.simulated,
            dict(self.world.environment),
        )
