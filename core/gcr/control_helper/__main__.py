"""Started by gcrd: `python -m gcr.control_helper BACKEND FD`. Ends when the daemon's socket closes."""

import gcr.starting

# isort: split
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import to_builtins

from gcr.backend import Backend
from gcr.control import ControlState, MovesProcesses, NamesHolders, ProcessView
from gcr.errors import GcrError, UnsupportedState, UsageError
from gcr.plugins import asked, load_backend
from gcr.protocol.channel import Channel, Request
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()

log = logging.getLogger("gcr.control")


class ControlService:
    """Answers the daemon's control calls; each runs on a thread of its own, so one stuck call stops no other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = threading.Lock()
        self._started: ControlState | None = None
        with contextlib.suppress(GcrError):  # the caller is told
            self._control  # noqa: B018  # the driver's start must not be on the critical path

    @cached_property
    def _backend(self) -> Backend:
        return load_backend(self._name)

    @property
    def _control(self) -> ControlState:
        """Tried again at each request until it works. Raises BackendMissing."""
        with self._starting:
            if self._started is None:
                self._started = asked(self._name, self._backend.control)
            return self._started

    def serve(self, request: Request) -> None:
        body = request.json()
        request.reply_json(asked(self._name, lambda: self._answer(str(body["op"]), body)))

    def _holders(self, device: str) -> Mapping[int, int]:
        return self._control.holders(device) if isinstance(self._control, NamesHolders) else {}

    def _check_move(self, devices: Mapping[str, str]) -> None:
        control = self._control
        if not isinstance(control, MovesProcesses):
            text = f"backend {self._name} brings processes back on the devices that they left, and on no others"
            raise UnsupportedState(text, hint="gcr restore without --device")
        control.check_move(devices)

    def _answer(self, op: str, body: dict[str, Any]) -> dict[str, object]:
        if op == "ready":
            return {}
        if op == "devices":
            return {"devices": [to_builtins(device) for device in self._backend.devices()]}
        if op == "means":
            return {"means": self._control.means.value}
        if op == "holders":
            return {"holders": {str(pid): size for pid, size in self._holders(str(body["device"])).items()}}
        if op == "check_move":
            self._check_move(body["devices"])
            return {}
        pid, deadline = int(body["pid"]), float(body.get("deadline", 10.0))
        match op:
            case "phase":
                return {"phase": self._control.phase(pid).value}
            case "inspect":
                return view_to_json(self._control.inspect(pid))
            case "lock":
                self._control.lock(pid, deadline)
            case "checkpoint":
                self._control.checkpoint(pid, deadline)
            case "restore":
                self._control.restore(pid, body["devices"], deadline)
            case "unlock":
                self._control.unlock(pid, deadline)
            case _:
                raise UsageError(f"the control helper knows no {op!r}")
        return {}


def view_to_json(view: ProcessView) -> dict[str, object]:
    return {
        "pid": view.pid,
        "phase": view.phase.value,
        "bytes_by_device": dict(view.bytes_by_device),
        "refusals": [{"reason": r.reason, "detail": r.detail} for r in view.refusals],
    }


def main(argv: list[str]) -> int:
    backend_name, fd = argv[0], int(argv[1])
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s control %(message)s")
    service = ControlService(backend_name)
    over = threading.Event()
    Channel(
        socket.socket(fileno=fd), service.serve, on_close=lambda _channel: over.set(), name="gcrd", bounds=COORDINATOR
    ).start()
    over.wait()
    os._exit(0)  # a driver call that never returns must not keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
