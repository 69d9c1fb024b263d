"""The control of the processes that a test names."""

import threading
import time
from collections.abc import Mapping

from gcr.backend import Backend
from gcr.control import ControlMeans, ControlPhase, ControlState, MovesProcesses, ProcessView, TellsReach

CALL_SECONDS = 20.0


class Control:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._made: ControlState | None = None

    @property
    def _control(self) -> ControlState:
        if self._made is None:
            self._made = self._backend.control()
        return self._made

    def means(self) -> ControlMeans:
        return self._control.means

    def phase(self, pid: int) -> ControlPhase:
        return self._control.phase(pid)

    def inspect(self, pid: int) -> ProcessView:
        return self._control.inspect(pid)

    def lock(self, pid: int, deadline: float) -> None:
        self._control.lock(pid, deadline)

    def checkpoint(self, pid: int, deadline: float) -> None:
        self._control.checkpoint(pid, deadline)

    def moves(self) -> bool:
        return isinstance(self._control, MovesProcesses)

    def check_move(self, devices: Mapping[str, str]) -> None:
        assert isinstance(self._control, MovesProcesses)
        self._control.check_move(devices)

    def tells_reach(self) -> bool:
        return isinstance(self._control, TellsReach)

    def reaches(self, device: str, peer: str) -> bool:
        assert isinstance(self._control, TellsReach)
        return self._control.reaches(device, peer)

    def restore(self, pid: int, devices: Mapping[str, str], deadline: float) -> None:
        self._control.restore(pid, devices, deadline)

    def unlock(self, pid: int, deadline: float) -> None:
        self._control.unlock(pid, deadline)

    def longest_silence(self, method: str, pid: int) -> tuple[float, float]:
        """Runs a control call. Returns its seconds, and the longest that another thread of it stood meanwhile."""
        beat = _Heartbeat()
        started = time.monotonic()
        getattr(self, method)(pid, *(({},) if method == "restore" else ()), CALL_SECONDS)
        return time.monotonic() - started, beat.stop()


class _Heartbeat:
    """A thread that ticks every millisecond and remembers its longest pause."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.001):
            now = time.monotonic()
            self._longest, last = max(self._longest, now - last), now
        self._longest = max(self._longest, time.monotonic() - last)

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._longest
