"""Control state through the driver's checkpoint calls (r570 and newer), inside the control helper.

These are called through cuda.bindings, not cuda.core.checkpoint.Process (seen in cuda.core 1.2.2): that one keeps a
CUresult only in the text of its error, so a lock that timed out looks like one that was refused; it fails on a process
that is between two phases; and it calls every NOT_SUPPORTED an old driver, also MIG.

The driver offers no deadline but for the lock. Each call therefore runs on a thread of its own, which outlives the
deadline when the driver does; cuda.bindings >= 12.9.1 release the GIL meanwhile.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.errors import DeadlinePassed, DriverTooOld
from gcr_nvidia import devices, moving, refusals
from gcr_nvidia.driver import (
    INVALID_VALUE,
    NOT_FOUND,
    NOT_INITIALIZED,
    NOT_READY,
    OPERATING_SYSTEM,
    SUCCESS,
    attempt,
    bindings,
    cuda,
    failure,
    initialise,
)

# CUprocessState; 4 and 5 are newer than r580, which answers as before the call while it is under way.
_PHASES = {
    0: ControlPhase.RUNNING,
    1: ControlPhase.LOCKED,
    2: ControlPhase.CHECKPOINTED,
    3: ControlPhase.FAILED,
    4: ControlPhase.BUSY,
    5: ControlPhase.BUSY,
}
_UNKNOWN_PROCESS = frozenset({INVALID_VALUE, NOT_INITIALIZED, NOT_FOUND})
_LOCK_GRACE_SECONDS = 1.0  # the driver times the lock itself; ours is only for a driver that does not


class NvidiaControl:
    """Implements gcr.control.ControlState, MovesProcesses and TellsReach."""

    means = ControlMeans.DRIVER

    def __init__(self) -> None:
        initialise()  # restore wants cuInit or persistence mode, and start-up must not be on the critical path

    def phase(self, pid: int) -> ControlPhase:
        result, state = attempt("cuCheckpointProcessGetState", pid)
        if result in _UNKNOWN_PROCESS or (result == OPERATING_SYSTEM and not _alive(pid)):
            return ControlPhase.ABSENT
        if result != SUCCESS:
            raise failure("cuCheckpointProcessGetState", result)
        return _PHASES.get(int(state), ControlPhase.BUSY)

    def inspect(self, pid: int) -> ProcessView:
        _refuse_old_driver(devices.driver_version())
        phase = self.phase(pid) if _alive(pid) else ControlPhase.ABSENT
        if phase is ControlPhase.ABSENT:
            return ProcessView(pid, phase, {}, ())
        return ProcessView(pid, phase, devices.bytes_of(pid), refusals.of(pid))

    def holders(self, device: str) -> Mapping[int, int]:
        return devices.memory(devices.handle(device)).by_pid

    def lock(self, pid: int, deadline: float) -> None:
        arguments = bindings().CUcheckpointLockArgs()
        arguments.timeoutMs = max(1, math.ceil(deadline * 1000))  # 0 would wait for ever
        late = {NOT_READY: lambda _told: _not_idle(pid, deadline)}
        ours = deadline + _LOCK_GRACE_SECONDS
        cuda.bounded("cuCheckpointProcessLock", pid, arguments, deadline=ours, errors=late)

    def checkpoint(self, pid: int, deadline: float) -> None:
        cuda.bounded("cuCheckpointProcessCheckpoint", pid, None, deadline=deadline)

    def check_move(self, devices: Mapping[str, str]) -> None:
        moving.check(devices)

    def reaches(self, device: str, peer: str) -> bool:
        return moving.reaches(device, peer)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        keep_alive: list[object] = []
        arguments = moving.restore_arguments(devices, keep_alive) if devices else None
        cuda.bounded("cuCheckpointProcessRestore", pid, arguments, deadline=deadline)

    def unlock(self, pid: int, deadline: float) -> None:
        cuda.bounded("cuCheckpointProcessUnlock", pid, None, deadline=deadline)


def _refuse_old_driver(version: str) -> None:
    if int(version.split(".")[0]) < devices.OLDEST_BRANCH:
        raise DriverTooOld(f"driver {version} cannot checkpoint; r{devices.OLDEST_BRANCH} can", hint="gcr doctor")


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _not_idle(pid: int, deadline: float) -> DeadlinePassed:
    return DeadlinePassed(f"process {pid} could not be locked in {deadline:.1f} s: its device work goes on")
