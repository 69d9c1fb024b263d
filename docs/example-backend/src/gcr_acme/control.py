"""Control state through the driver's checkpoint calls, inside the control helper: implements gcr.control.ControlState.

The driver offers no deadline but for the lock, so each call runs on a thread of its own, which outlives the deadline
when the driver does.
"""

import math
import threading
from collections.abc import Mapping
from ctypes import c_uint
from pathlib import Path

from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.errors import DeadlinePassed
from gcr_acme import devices
from gcr_acme.driver import Result, attempt, byref, c_int, failure, library

_PHASES = (ControlPhase.RUNNING, ControlPhase.LOCKED, ControlPhase.CHECKPOINTED, ControlPhase.FAILED)
_GRACE_SECONDS = 1.0


class AcmeControl:
    means = ControlMeans.DRIVER

    def __init__(self) -> None:
        library()  # the driver's start must not be on the critical path

    def phase(self, pid: int) -> ControlPhase:
        state = c_int()
        result = attempt("acmeProcessState", c_int(pid), byref(state))
        if result in (Result.INVALID, Result.NOT_STARTED) or (result and not Path(f"/proc/{pid}").exists()):
            return ControlPhase.ABSENT
        if result:
            raise failure("acmeProcessState", result)
        return _PHASES[state.value]

    def inspect(self, pid: int) -> ProcessView:
        phase = self.phase(pid)
        if phase is ControlPhase.ABSENT:
            return ProcessView(pid, phase, {}, ())
        used = {devices.uuid_of(n): devices.users_of(n).get(pid, 0) for n in range(devices.count())}
        return ProcessView(pid, phase, {uuid: size for uuid, size in used.items() if size}, ())

    def lock(self, pid: int, deadline: float) -> None:
        timeout = c_uint(max(1, math.ceil(deadline * 1000)))
        result = _bounded("acmeProcessLock", deadline + _GRACE_SECONDS, c_int(pid), timeout)
        if result == Result.NOT_READY:
            raise DeadlinePassed(f"process {pid} could not be locked in {deadline:.1f} s")
        _check("acmeProcessLock", result)

    def checkpoint(self, pid: int, deadline: float) -> None:
        _check("acmeProcessCheckpoint", _bounded("acmeProcessCheckpoint", deadline, c_int(pid)))

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        _check("acmeProcessRestore", _bounded("acmeProcessRestore", deadline, c_int(pid)))

    def unlock(self, pid: int, deadline: float) -> None:
        _check("acmeProcessUnlock", _bounded("acmeProcessUnlock", deadline, c_int(pid)))


def _check(name: str, result: int) -> None:
    if result:
        raise failure(name, result)


def _bounded(name: str, deadline: float, *arguments: object) -> int:
    """The call's result. Raises DeadlinePassed when the driver is not back in `deadline` seconds."""
    results: list[int] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(attempt(name, *arguments))
        finally:
            over.set()

    threading.Thread(target=run, name=name, daemon=True).start()
    if not over.wait(deadline):
        raise DeadlinePassed(f"{name} is not back after {deadline:.1f} s", hint="ask its phase")
    return results[0]
