"""Control state through the driver's checkpoint calls, inside the control helper: implements gcr.control.ControlState.

The driver offers no deadline but for the lock, so each call is bounded by gcr (`Calls.bounded`).
"""

import math
from collections.abc import Mapping
from ctypes import byref, c_int, c_uint
from pathlib import Path

from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.devices import where_it_has_bytes
from gcr.errors import DeadlinePassed
from gcr_acme import devices
from gcr_acme.driver import Result, acme, library

_PHASES = (ControlPhase.RUNNING, ControlPhase.LOCKED, ControlPhase.CHECKPOINTED, ControlPhase.FAILED)
_GRACE_SECONDS = 1.0


class AcmeControl:
    means = ControlMeans.DRIVER

    def __init__(self) -> None:
        library()  # the driver's start must not be on the critical path

    def phase(self, pid: int) -> ControlPhase:
        state = c_int()
        result, _ = acme.attempt("acmeProcessState", c_int(pid), byref(state))
        if result in (Result.INVALID, Result.NOT_STARTED) or (result and not Path(f"/proc/{pid}").exists()):
            return ControlPhase.ABSENT
        if result:
            raise acme.failure("acmeProcessState", result)
        return _PHASES[state.value]

    def inspect(self, pid: int) -> ProcessView:
        phase = self.phase(pid)
        if phase is ControlPhase.ABSENT:
            return ProcessView(pid, phase, {}, ())
        used = {devices.uuid_of(n): devices.users_of(n).get(pid, 0) for n in range(devices.count())}
        return ProcessView(pid, phase, where_it_has_bytes(used), ())

    def holders(self, device: str) -> Mapping[int, int]:
        return devices.users_of(devices.ordinal_of(device))

    def lock(self, pid: int, deadline: float) -> None:
        timeout = c_uint(max(1, math.ceil(deadline * 1000)))
        ours = deadline + _GRACE_SECONDS
        acme.bounded("acmeProcessLock", c_int(pid), timeout, deadline=ours, errors={Result.NOT_READY: DeadlinePassed})

    def checkpoint(self, pid: int, deadline: float) -> None:
        acme.bounded("acmeProcessCheckpoint", c_int(pid), deadline=deadline)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        acme.bounded("acmeProcessRestore", c_int(pid), deadline=deadline)

    def unlock(self, pid: int, deadline: float) -> None:
        acme.bounded("acmeProcessUnlock", c_int(pid), deadline=deadline)
