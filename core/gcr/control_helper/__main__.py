"""Started by gcrd: `python -m gcr.control_helper BACKEND FD`. Ends when the daemon's socket closes."""

import logging
import os
import socket
import sys
import threading
from dataclasses import asdict
from typing import Any

from gcr.backend import Backend
from gcr.channel import Channel, Request
from gcr.control import ControlState, ProcessView
from gcr.errors import UsageError
from gcr.plugins import load_plugins

log = logging.getLogger("gcr.control")


class ControlService:
    """Answers the daemon's control calls; each runs on a thread of its own, so one stuck call stops no other."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._control: ControlState = backend.control()

    def serve(self, request: Request) -> None:
        body = request.json()
        request.reply_json(self._answer(str(body["op"]), body))

    def _answer(self, op: str, body: dict[str, Any]) -> dict[str, object]:
        if op == "devices":
            return {"devices": [asdict(device) for device in self._backend.devices()]}
        if op == "means":
            return {"means": self._control.means.value}
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
    service = ControlService(load_plugins().backend(backend_name))
    over = threading.Event()
    Channel(socket.socket(fileno=fd), service.serve, on_close=lambda _channel: over.set(), name="gcrd").start()
    over.wait()
    os._exit(0)  # a driver call that never returns must not keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
